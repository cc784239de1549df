"""The views of a report: pure functions from a `Report` to text. All numbers come from `content`."""
