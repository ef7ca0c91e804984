"""Who encodes, sends and adds what: the language of schedules, their proof on symbols, the cost model."""
