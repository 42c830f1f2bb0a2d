"""Why batches of some TPC-DS views cost more than others: what in the query makes few changes touch many rows."""

from __future__ import annotations

from collections.abc import Mapping

_YEARS = (
    "the totals of every customer and year are kept by channel and joined with themselves; a changed customer, "
    "or a changed date with all of its sales, moves the groups of each side"
)
_CROSS = (
    "which items count is an INTERSECT over all sales of three channels, and an average over all of them is "
    "compared with every group: a change of either decides anew about groups that did not change"
)
_BEST = (
    "the best customers are those above a share of the largest total: the limit moves with one customer's sales, "
    "and all totals are held against it"
)
_MONTHS = (
    "a window over all months of a brand and shop is recomputed for every partition with a change, and its rows "
    "meet those of the month before and after in a join with itself"
)
_SHARES = "each row is divided by a window's total, so a change rewrites all rows of its class or category"
_ROLLUP = "every row counts in each grouping set"
_WIDE = "many tables join before anything is aggregated; each table's changes go through all the lookups"
_WHO = (
    "whether a customer bought is asked of three channels by EXISTS: a changed customer looks into each of them, and "
    "a changed date brings all of its sales"
)
_AVERAGE = (
    "every group is compared with an average over the groups beside it, which moves with each of them: those that "
    "did not change are decided anew"
)
_ORDER = "an order's lines are held against each other and against returns: an order with a change is recomputed whole"
_WEEKS = "all sales are added up by week and joined with the weeks of the year after"
_CHANNELS = "three channels are added up by themselves and joined: each change goes through the plan of its channel"
_BUYERS = "who bought on which day is made distinct in three channels and compared: every sale is kept"

WHY: Mapping[str, str] = {
    **dict.fromkeys(("q10", "q35", "q69"), _WHO),
    **dict.fromkeys(("q1", "q6", "q30", "q32", "q81", "q92"), _AVERAGE),
    **dict.fromkeys(("q16", "q94"), _ORDER),
    **dict.fromkeys(("q2", "q59"), _WEEKS),
    **dict.fromkeys(("q31", "q33", "q56", "q58", "q60", "q66", "q76", "q83"), _CHANNELS),
    **dict.fromkeys(("q38", "q54", "q87", "q97"), _BUYERS),
    "q4": _YEARS,
    "q11": _YEARS,
    "q74": _YEARS,
    "q14a": _CROSS,
    "q14b": _CROSS,
    "q23a": _BEST,
    "q23b": _BEST,
    "q24a": _WIDE,
    "q24b": _WIDE,
    "q64": _WIDE,
    "q85": _WIDE,
    "q12": _SHARES,
    "q20": _SHARES,
    "q98": _SHARES,
    "q47": _MONTHS,
    "q57": _MONTHS,
    "q5": f"{_ROLLUP}, and the rows are sales and returns of three channels together",
    "q18": f"{_ROLLUP}: five of them, with seven averages each, over a join of seven tables",
    "q22": f"{_ROLLUP}: five of them, over the inventory, the largest table",
    "q27": f"{_ROLLUP}: three of them, with four averages each",
    "q36": f"{_ROLLUP}, and ranks within them are windows: a partition with a change is recomputed whole",
    "q67": f"{_ROLLUP}: nine of them, and the rank of each row in its category is a window over tens "
    "of thousands of rows",
    "q70": f"{_ROLLUP}, and ranks within them are windows: a partition with a change is recomputed whole",
    "q77": f"{_ROLLUP}, and the rows are sales and returns of three channels together",
    "q80": f"{_ROLLUP}, and the rows are sales and returns of three channels together",
    "q86": f"{_ROLLUP}, and ranks within them are windows: a partition with a change is recomputed whole",
    "q21": "it reads the inventory, the largest table, by date, and a change of an item or a date "
    "meets all of its weeks",
    "q37": "an item's inventory meets all of its sales before duplicates go: hundreds of weeks times dozens of sales",
    "q82": "an item's inventory meets all of its sales before duplicates go: hundreds of weeks times dozens of sales",
    "q39a": "it aggregates the inventory, the largest table, by item and month, and joins the months with each other",
    "q39b": "it aggregates the inventory, the largest table, by item and month, and joins the months with each other",
    "q44": "items are ranked by one window over all of them, without a partition: any change recomputes it",
    "q49": "returns are ranked by windows over all items of a channel, without a partition: any change recomputes them",
    "q51": "running totals by item in two channels, joined outer, and running maxima over that: an "
    "item is recomputed whole",
    "q72": "every week of an item's inventory meets every order of the item: the join is hundreds of times its inputs, "
    "and the condition between the two dates comes after it",
    "q75": "a UNION of three channels, each with its returns, is made distinct before it is added "
    "up: every sale is kept",
    "q78": "three channels, each without what was returned, are aggregated by item and customer and joined outer",
    "q88": "eight counts over the same four tables with other conditions: every change goes through eight plans",
    "q9": "fifteen scalar aggregates over store_sales, all touched by nearly every batch",
    "q28": "six sets of distinct prices are counted over store_sales: each price of each set is kept with its count",
    "q95": "the orders sent from two warehouses come from web_sales joined with itself, and the "
    "orders are looked up twice",
}
