"""Pictures: a few shapes on a sheet, laid out once, written as SVG by ourselves and as PNG through matplotlib."""
