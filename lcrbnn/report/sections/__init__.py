"""The sections of a report. There is one file per section or group of sections."""
