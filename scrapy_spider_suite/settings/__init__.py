"""The settings of the suite: declared, read, checked, changed."""
