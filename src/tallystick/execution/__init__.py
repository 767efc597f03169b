"""How a run is executed and re-executed: schedules, sampling, and the child programs."""
