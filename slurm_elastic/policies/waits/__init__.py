"""Why a pending job waits: one answer for all screens, notes on jobs and forecasts."""
