"""One command that fills results/ with what this suite measures, within a time: see `__main__`."""
