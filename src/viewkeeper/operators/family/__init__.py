"""View families: one pass over the rows serves all members of a family.

    rows ──bounds of all members──▶ one bucket a column ──▶ cell: a tuple of buckets; its rows have the same members
         ──sums by (group, cell)──▶ recompose ──▶ sums by (member, group)

`value_codes` maps values of any type to integers in the same order. `axes` computes, for one condition of the template,
the bucket of each row and the buckets that each member needs. `recompose` computes the members' sums from those of the
cells: by prefix sums over a grid, by a product with a bit matrix, or by the matching pairs.
"""
