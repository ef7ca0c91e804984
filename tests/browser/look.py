"""Opens a page in a browser without a screen (QtWebEngine, which is Chromium): `look.py PAGE PICTURE WIDTH [dark]`.

Prints a JSON object: what was logged, and what the page has become.
"""

import json
import os
import sys

page, picture, width = sys.argv[1:4]
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"
dark = " --blink-settings=preferredColorScheme=0" if "dark" in sys.argv[4:] else ""
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = f"--disable-gpu{dark}"

from PySide6.QtCore import QTimer, QUrl  # noqa: E402
from PySide6.QtWebEngineCore import QWebEnginePage  # noqa: E402
from PySide6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PySide6.QtWidgets import QApplication  # noqa: E402

LOOK = """
(() => {
  const table = document.querySelector("table"), heads = [...table.querySelectorAll("th")];
  const column = heads.findIndex(each => each.textContent === "bytes");
  const values = () => [...table.tBodies[0].rows].map(row => Number(row.children[column].dataset.value));
  const plot = document.querySelector(".plot");
  Plotly.Fx.hover(plot, [{curveNumber: 0, pointNumber: 0}]);
  const hovered = plot.querySelectorAll(".hoverlayer .hovertext").length;
  heads[column].click(); const up = values(); heads[column].click(); const down = values();
  return JSON.stringify({
    plots: [...document.querySelectorAll(".plot")].map(each => each.querySelectorAll(".main-svg .trace").length > 0),
    up, down, hovered,
    wide: document.documentElement.scrollWidth > innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector(".plot .xtick text")).fill,
  });
})()
"""
logged = []


class Page(QWebEnginePage):
    def javaScriptConsoleMessage(self, level, message, line, source):
        logged.append(f"{level.name}: {message}")


application = QApplication(sys.argv[:1])
view = QWebEngineView()
view.setPage(Page(view))
view.resize(int(width), 1000)
view.show()


def wait():
    view.page().runJavaScript("document.body.dataset.drawn || ''", begin)


def begin(drawn):
    if drawn:
        QTimer.singleShot(500, lambda: (view.grab().save(picture), view.page().runJavaScript(LOOK, end)))
    else:
        QTimer.singleShot(100, wait)


def end(found):
    print(json.dumps({"logged": logged, **json.loads(found)}))
    application.quit()


view.page().loadFinished.connect(lambda _: wait())
view.page().setUrl(QUrl.fromLocalFile(os.path.abspath(page)))
QTimer.singleShot(60_000, lambda: (print(json.dumps({"logged": [*logged, "not drawn in time"]})), application.quit()))
application.exec()
