"""The honest harness: methods x label shares x seeds x data sets, each cell trained once."""
