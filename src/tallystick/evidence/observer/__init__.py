"""The observer protocol: records of a run's graphs as JSON lines (docs/spec/observer.md). Pure."""
