"""Between values and bytes: how arrays lie in memory, where they are cut, codecs and their families, frames."""
