"""Look at data and settings before a training does, and say what is wrong and how to mend it."""
