"""Which schedules a group may take, and which the cost model prefers."""

from fusioncc.autotune.choose import best, next_best, rank, ranked_pools
from fusioncc.autotune.pick import pick
from fusioncc.autotune.space import Space, spaces

__all__ = ["Space", "best", "next_best", "pick", "rank", "ranked_pools", "spaces"]
