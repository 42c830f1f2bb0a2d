"""Families: views that differ only in constants are compiled as one view over a table of parameters.

CREATE MATERIALIZED VIEW q PARAMETERS (day DATE) AS SELECT … WHERE x < :day
  =  SELECT p.*, b.* FROM `q.parameters` p, LATERAL (SELECT … WHERE x < p.day) b

  text_templates.py  constants in a query's text that may vary without changing the plan
  plan_templates.py  plans of queries that differ in constants, without asking Catalyst again
  detect.py          which separately created views are members of one family
  cost.py            when a family is cheaper than separate views
  lift.py            a plan with parameters → the plan of all members at once
  compile.py         the members' rows, and sums over them, as operators
"""
