"""Families: views that differ in constants are one view over a table of parameters.

CREATE MATERIALIZED VIEW q PARAMETERS (day DATE) AS SELECT … WHERE x < :day
  =  SELECT p.*, b.* FROM `q.parameters` p, LATERAL (SELECT … WHERE x < p.day) b

texts.py     the query with its parameters as names, and as that query over the table of parameters
tables.py    the table of parameters in a query
lifting.py   a plan with parameters → the plan of all members at once
membership.py  which views that were made by name are members of one
costs.py     when they are better kept as one
sharing.py   how the members' rows, and sums over them, are compiled
"""
