#!/usr/bin/env python3
"""g++, which compiles once what is the same behind the preprocessor: a fault in one header changes few objects of ten.

The objects are kept in the folder $MUTATE_OBJECTS.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

words = sys.argv[1:]
if "-c" in words:
    target = Path(words[words.index("-o") + 1])
    expanding = [word for word in words if word not in ("-c", "-o", str(target))]
    expanded = subprocess.run(["g++", "-E", *expanding], check=True, stdout=subprocess.PIPE).stdout
    options = [word for word in words if word.startswith(("-f", "-m", "-O", "-std"))]
    kept = Path(os.environ["MUTATE_OBJECTS"], hashlib.sha256(repr(options).encode() + expanded).hexdigest() + ".o")
    if not kept.exists():
        made = kept.with_suffix(f".{os.getpid()}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        status = subprocess.run(["g++", *words]).returncode
        if status:
            sys.exit(status)
        shutil.copyfile(target, made)
        made.rename(kept)
    shutil.copyfile(kept, target)
else:
    os.execvp("g++", ["g++", *words])
