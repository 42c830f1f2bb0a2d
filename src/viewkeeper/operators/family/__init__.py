"""Cells: how one pass over rows serves all members of a family.

rows ──bounds of all members──▶ a bucket a column ──▶ cell: the tuple of buckets; its rows have the same members
     ──sums by (group, cell)──▶ recompose ──▶ sums by (member, group)

codes.py       values of any type as integers in the same order
axes.py        one condition of the template: the bucket of each row, the buckets that each member wants
addends.py     exact sums as columns of 64-bit integers that can be added in any way
recompose.py   from cells to members: prefix sums over a grid, a product with bits, or the pairs that meet
"""
