"""Queries in the manner of TPC-DS over a small part of its schema: what its 99 queries ask of an optimiser and of us.

A name says which of TPC-DS's queries it follows. ORDER BY … LIMIT ends in all columns, so that the choice of rows is
the same for everybody. Domains are small, so that joins meet and groups empty.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from tests.property.schemas import Column, Table


def _table(name: str, key: tuple[str, ...], rows: int, **columns: tuple[str, tuple[Any, ...]]) -> Table:
    made = tuple(Column(c, type_, values, c not in key) for c, (type_, values) in columns.items())
    return Table(name, made, key, rows)


_ITEMS, _CUSTOMERS, _STORES, _DATES = tuple(range(1, 13)), tuple(range(1, 16)), tuple(range(1, 5)), tuple(range(1, 31))
_PRICES = tuple(Decimal(p) / 100 for p in (99, 100, 150, 250, 999, 1250, 2000, 4999))
_PROFITS = tuple(Decimal(p) / 100 for p in (-1500, -200, -1, 0, 50, 125, 900, 3100))


def _sales(name: str, prefix: str, rows: int, **more: tuple[str, tuple[Any, ...]]) -> Table:
    columns = {
        "item_sk": ("bigint", _ITEMS),
        "number": ("bigint", tuple(range(1, 60))),
        "sold_date_sk": ("bigint", (*_DATES, 99)),
        "customer_sk": ("bigint", (*_CUSTOMERS, 99)),
        "quantity": ("int", (1, 2, 3, 5, 10, 20, 50, 80)),
        "list_price": ("decimal(7,2)", _PRICES),
        "ext_sales_price": ("decimal(7,2)", _PRICES),
        "net_profit": ("decimal(7,2)", _PROFITS),
        **more,
    }
    return _table(
        name, (f"{prefix}_item_sk", f"{prefix}_number"), rows, **{f"{prefix}_{c}": d for c, d in columns.items()}
    )


TABLES = (
    _table(
        *("date_dim", ("d_date_sk",), 45),
        d_date_sk=("bigint", _DATES),
        d_date=("date", tuple(dt.date(2000, 1, 1) + dt.timedelta(17 * i) for i in range(24))),
        d_year=("int", (1999, 2000, 2001)),
        d_moy=("int", (1, 2, 3, 11, 12)),
        d_qoy=("int", (1, 4)),
        d_day_name=("string", ("Sunday", "Monday", "Friday")),
    ),
    _table(
        *("item", ("i_item_sk",), 20),
        i_item_sk=("bigint", _ITEMS),
        i_item_id=("string", ("AA", "AB", "AC", "AD", "AE")),
        i_category=("string", ("Books", "Music", "Sports")),
        i_class=("string", ("rock", "pop", "tennis")),
        i_brand=("string", ("one", "two")),
        i_current_price=("decimal(7,2)", _PRICES),
        i_color=("string", ("red", "blue", "azure", "misty")),
    ),
    _table(
        *("customer", ("c_customer_sk",), 25),
        c_customer_sk=("bigint", _CUSTOMERS),
        c_last_name=("string", ("Lee", "Ng", "Ito")),
        c_first_name=("string", ("Ann", "Bo")),
        c_birth_year=("int", tuple(range(1960, 1975))),
        c_zip=("string", ("24128", "76232", "65084", "87816", "83926", "77556", "20548", "26231")),
    ),
    _table(
        *("store", ("s_store_sk",), 8),
        s_store_sk=("bigint", _STORES),
        s_store_name=("string", ("able", "bar", "ought")),
        s_state=("string", ("TN", "SD", "AL")),
        s_county=("string", ("Ziebach", "Walker")),
    ),
    _sales("store_sales", "ss", 110, store_sk=("bigint", (*_STORES, 99))),
    _sales("web_sales", "ws", 60),
    _table(
        *("store_returns", ("sr_item_sk", "sr_number"), 50),
        sr_item_sk=("bigint", _ITEMS),
        sr_number=("bigint", tuple(range(1, 60))),
        sr_customer_sk=("bigint", _CUSTOMERS),
        sr_store_sk=("bigint", _STORES),
        sr_return_amt=("decimal(7,2)", _PRICES),
    ),
)

QUERIES = {
    "q01_above_the_average_of_its_store": """
        WITH total AS (SELECT sr_customer_sk AS ctr_customer, sr_store_sk AS ctr_store, sum(sr_return_amt) AS ctr_total
                       FROM store_returns GROUP BY sr_customer_sk, sr_store_sk)
        SELECT c_customer_sk, c_last_name, ctr_total FROM total t JOIN store ON s_store_sk = ctr_store
        JOIN customer ON ctr_customer = c_customer_sk
        WHERE ctr_total > (SELECT avg(ctr_total) * 1.2 FROM total u WHERE t.ctr_store = u.ctr_store)
          AND s_state IN ('TN', 'SD')""",
    "q03_brands_in_november": """
        SELECT d_year, i_brand, sum(ss_ext_sales_price) AS sum_agg FROM date_dim, store_sales, item
        WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_category = 'Books' AND d_moy IN (11, 12)
        GROUP BY d_year, i_brand ORDER BY d_year, sum_agg DESC, i_brand LIMIT 100""",
    "q06_dearer_than_its_category": """
        SELECT c_zip AS zip, count(*) AS cnt FROM customer, store_sales, date_dim, item i
        WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND ss_item_sk = i.i_item_sk
          AND d_year >= (SELECT min(d_year) FROM date_dim WHERE d_moy = 1)
          AND i.i_current_price > 1.1 * (SELECT avg(j.i_current_price) FROM item j WHERE j.i_category = i.i_category)
        GROUP BY c_zip HAVING count(*) >= 2""",
    "q08_a_long_list_of_zips": """
        SELECT s_store_name, sum(ss_net_profit) AS profit FROM store_sales, store,
        (SELECT zip FROM (SELECT substr(c_zip, 1, 5) AS zip FROM customer WHERE substr(c_zip, 1, 5) IN
            ('24128', '76232', '65084', '87816', '83926', '77556', '11111', '22222', '33333', '44444', '55555', '66666')
         INTERSECT
         SELECT zip FROM (SELECT c_zip AS zip, count(*) AS cnt FROM customer GROUP BY c_zip HAVING count(*) > 1) x))
        WHERE ss_store_sk = s_store_sk AND substr(zip, 1, 1) >= s_store_sk GROUP BY s_store_name""",
    "q09_buckets_of_merged_subqueries": """
        SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) > 60
                    THEN (SELECT avg(ss_list_price) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20)
                    ELSE (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) END AS bucket1,
               CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 80) > 60
                    THEN (SELECT avg(ss_list_price) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 80)
                    ELSE (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 80) END
                    AS bucket2, d_date_sk
        FROM date_dim WHERE d_date_sk <= 3""",
    "q10_exists_or_exists": """
        SELECT c_last_name, c_first_name, count(*) AS cnt1, min(c_birth_year) AS young, avg(c_birth_year) AS mean
        FROM customer c
        WHERE EXISTS (SELECT * FROM store_sales, date_dim
                      WHERE c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2000)
          AND (EXISTS (SELECT * FROM web_sales, date_dim
                       WHERE c_customer_sk = ws_customer_sk AND ws_sold_date_sk = d_date_sk AND d_moy < 4)
               OR EXISTS (SELECT * FROM store_returns WHERE c_customer_sk = sr_customer_sk AND sr_return_amt > 5))
        GROUP BY c_last_name, c_first_name""",
    "q12_share_of_its_class": """
        SELECT i_item_id, i_category, i_class, sum(ws_ext_sales_price) AS itemrevenue,
               sum(ws_ext_sales_price) * 100 / sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class) AS revenueratio
        FROM web_sales, item, date_dim
        WHERE ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk
          AND d_date BETWEEN DATE'2000-01-10' AND (DATE'2000-01-10' + INTERVAL 300 DAYS)
        GROUP BY i_item_id, i_category, i_class""",
    "q14_sold_in_both_channels": """
        WITH cross_items AS (SELECT i_item_sk AS sk FROM item,
            (SELECT i_brand AS brand, i_class AS class FROM store_sales, item WHERE ss_item_sk = i_item_sk
             INTERSECT SELECT i_brand, i_class FROM web_sales, item WHERE ws_item_sk = i_item_sk) x
            WHERE i_brand = brand AND i_class = class),
        avg_sales AS (SELECT avg(quantity * list_price) AS average_sales FROM (
            SELECT ss_quantity AS quantity, ss_list_price AS list_price FROM store_sales
            UNION ALL SELECT ws_quantity, ws_list_price FROM web_sales) x)
        SELECT channel, i_brand, sum(sales) AS sum_sales, sum(number_sales) AS number_sales FROM (
            SELECT 'shop' AS channel, i_brand, sum(ss_quantity * ss_list_price) AS sales, count(*) AS number_sales
            FROM store_sales JOIN item ON ss_item_sk = i_item_sk WHERE ss_item_sk IN (SELECT sk FROM cross_items)
            GROUP BY i_brand HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
            UNION ALL
            SELECT 'web' AS channel, i_brand, sum(ws_quantity * ws_list_price) AS sales, count(*) AS number_sales
            FROM web_sales JOIN item ON ws_item_sk = i_item_sk WHERE ws_item_sk IN (SELECT sk FROM cross_items)
            GROUP BY i_brand HAVING sum(ws_quantity * ws_list_price) > (SELECT average_sales FROM avg_sales)) y
        GROUP BY ROLLUP (channel, i_brand)""",
    "q16_count_distinct_beside_sums": """
        SELECT count(DISTINCT ss_number) AS order_count, sum(ss_ext_sales_price) AS total, sum(ss_net_profit) AS profit
        FROM store_sales a WHERE EXISTS (SELECT * FROM store_sales b WHERE a.ss_number = b.ss_number
                                         AND a.ss_store_sk <> b.ss_store_sk)
          AND NOT EXISTS (SELECT * FROM store_returns WHERE a.ss_number = sr_number)""",
    "q18_averages_rolled_up": """
        SELECT i_item_id, s_state, s_county, avg(CAST(ss_quantity AS DECIMAL(12,2))) AS agg1,
               avg(CAST(ss_list_price AS DECIMAL(12,2))) AS agg2, count(c_birth_year) AS agg3
        FROM store_sales, store, item, customer
        WHERE ss_store_sk = s_store_sk AND ss_item_sk = i_item_sk AND ss_customer_sk = c_customer_sk
        GROUP BY ROLLUP (i_item_id, s_state, s_county)""",
    "q23_frequent_items_best_customers": """
        WITH frequent AS (SELECT i_item_sk AS item_sk, d_year, count(*) AS cnt FROM store_sales, date_dim, item
                          WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk
                          GROUP BY i_item_sk, d_year HAVING count(*) > 2),
        max_sales AS (SELECT max(csales) AS most FROM (SELECT c_customer_sk, sum(ss_quantity * ss_list_price) AS csales
                      FROM store_sales, customer WHERE ss_customer_sk = c_customer_sk GROUP BY c_customer_sk) x),
        best AS (SELECT c_customer_sk AS sk, sum(ss_quantity * ss_list_price) AS ssales FROM store_sales, customer
                 WHERE ss_customer_sk = c_customer_sk GROUP BY c_customer_sk
                 HAVING sum(ss_quantity * ss_list_price) > 0.3 * (SELECT * FROM max_sales))
        SELECT sum(sales) AS total FROM (SELECT ws_quantity * ws_list_price AS sales FROM web_sales
            WHERE ws_item_sk IN (SELECT item_sk FROM frequent) AND ws_customer_sk IN (SELECT sk FROM best)) y""",
    "q28_cross_joined_aggregates": """
        SELECT * FROM
        (SELECT avg(ss_list_price) AS b1_lp, count(ss_list_price) AS b1_cnt, count(DISTINCT ss_list_price) AS b1_cntd
         FROM store_sales WHERE ss_quantity BETWEEN 0 AND 5 AND (ss_list_price BETWEEN 1 AND 11
                                                                 OR ss_net_profit BETWEEN 0 AND 8)) b1,
        (SELECT avg(ss_list_price) AS b2_lp, count(ss_list_price) AS b2_cnt, count(DISTINCT ss_list_price) AS b2_cntd
         FROM store_sales WHERE ss_quantity BETWEEN 6 AND 90 AND (ss_list_price BETWEEN 9 AND 50
                                                                  OR ss_net_profit BETWEEN -2 AND 1)) b2""",
    "q31_growth_of_two_channels": """
        WITH ss AS (SELECT i_category, d_qoy, d_year, sum(ss_ext_sales_price) AS store_amount
                    FROM store_sales, date_dim, item WHERE ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk
                    GROUP BY i_category, d_qoy, d_year),
        ws AS (SELECT i_category, d_qoy, d_year, sum(ws_ext_sales_price) AS web_amount FROM web_sales, date_dim, item
               WHERE ws_sold_date_sk = d_date_sk AND ws_item_sk = i_item_sk GROUP BY i_category, d_qoy, d_year)
        SELECT ss1.i_category, ss1.d_year, ws2.web_amount / ws1.web_amount AS web_growth,
               ss2.store_amount / ss1.store_amount AS store_growth
        FROM ss ss1, ss ss2, ws ws1, ws ws2
        WHERE ss1.d_qoy = 1 AND ss1.i_category = ss2.i_category AND ss2.d_qoy = 4 AND ss1.d_year = ss2.d_year
          AND ss1.i_category = ws1.i_category AND ws1.d_qoy = 1 AND ws1.d_year = ss1.d_year
          AND ws1.i_category = ws2.i_category AND ws2.d_qoy = 4 AND ws2.d_year = ss1.d_year
          AND CASE WHEN ws1.web_amount > 0 THEN ws2.web_amount / ws1.web_amount ELSE NULL END
            > CASE WHEN ss1.store_amount > 0 THEN ss2.store_amount / ss1.store_amount ELSE NULL END""",
    "q34_tickets_of_some_size": """
        SELECT c_last_name, c_first_name, ss_number, cnt FROM
        (SELECT ss_number, ss_customer_sk, count(*) AS cnt FROM store_sales, date_dim, store
         WHERE ss_sold_date_sk = d_date_sk AND ss_store_sk = s_store_sk AND (d_moy BETWEEN 1 AND 3 OR d_moy = 12)
           AND s_county IN ('Ziebach', 'Walker') GROUP BY ss_number, ss_customer_sk) dn, customer
        WHERE ss_customer_sk = c_customer_sk AND cnt BETWEEN 1 AND 2""",
    "q36_rank_within_its_level": """
        SELECT sum(ss_net_profit) / sum(ss_ext_sales_price) AS gross_margin, i_category, i_class,
               grouping(i_category) + grouping(i_class) AS lochierarchy,
               rank() OVER (PARTITION BY grouping(i_category) + grouping(i_class),
                            CASE WHEN grouping(i_class) = 0 THEN i_category END
                            ORDER BY sum(ss_net_profit) / sum(ss_ext_sales_price) ASC) AS rank_within_parent
        FROM store_sales, item, store
        WHERE i_item_sk = ss_item_sk AND s_store_sk = ss_store_sk AND s_state IN ('TN', 'AL')
        GROUP BY ROLLUP (i_category, i_class)""",
    "q38_in_all_channels": """
        SELECT count(*) AS n FROM (
            SELECT DISTINCT c_last_name, c_first_name, d_year FROM store_sales, date_dim, customer
            WHERE ss_sold_date_sk = d_date_sk AND ss_customer_sk = c_customer_sk
            INTERSECT SELECT DISTINCT c_last_name, c_first_name, d_year FROM web_sales, date_dim, customer
            WHERE ws_sold_date_sk = d_date_sk AND ws_customer_sk = c_customer_sk) hot""",
    "q39_variation_of_quantities": """
        SELECT s_store_sk, i_item_id, stdev, mean, CASE mean WHEN 0 THEN NULL ELSE stdev / mean END AS cov
        FROM (SELECT s_store_sk, i_item_id, stddev_samp(ss_quantity) AS stdev, avg(ss_quantity) AS mean
              FROM store_sales, item, store WHERE ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk
              GROUP BY s_store_sk, i_item_id) foo
        WHERE CASE mean WHEN 0 THEN 0 ELSE stdev / mean END > 0.5""",
    "q41_a_correlated_count": """
        SELECT DISTINCT i_item_id FROM item i1 WHERE i_current_price BETWEEN 1 AND 15 AND
        (SELECT count(*) AS item_cnt FROM item WHERE i_brand = i1.i_brand AND
            ((i_category = 'Music' AND i_color IN ('red', 'blue')) OR (i_category = 'Books' AND i_color = 'azure')))
            > 0""",
    "q43_days_as_columns": """
        SELECT s_store_name, sum(CASE WHEN d_day_name = 'Sunday' THEN ss_ext_sales_price ELSE NULL END) AS sun_sales,
               sum(CASE WHEN d_day_name = 'Monday' THEN ss_ext_sales_price END) AS mon_sales,
               sum(CASE WHEN d_day_name = 'Friday' THEN ss_ext_sales_price ELSE 0 END) AS fri_sales
        FROM date_dim, store_sales, store WHERE d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk
        GROUP BY s_store_name""",
    "q44_best_and_worst": """
        SELECT asceding.rnk, i1.i_item_id AS best, i2.i_item_id AS worst FROM
        (SELECT * FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col ASC) AS rnk FROM
            (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales GROUP BY ss_item_sk
             HAVING avg(ss_net_profit) > 0.1 * (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_store_sk = 1)) v1)
            v11 WHERE rnk < 5) asceding,
        (SELECT * FROM (SELECT item_sk, rank() OVER (ORDER BY rank_col DESC) AS rnk FROM
            (SELECT ss_item_sk AS item_sk, avg(ss_net_profit) AS rank_col FROM store_sales GROUP BY ss_item_sk
             HAVING avg(ss_net_profit) > 0.1 * (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_store_sk = 1)) v2)
            v21 WHERE rnk < 5) descending, item i1, item i2
        WHERE asceding.rnk = descending.rnk AND i1.i_item_sk = asceding.item_sk
          AND i2.i_item_sk = descending.item_sk""",
    "q45_a_zip_or_an_item": """
        SELECT c_zip, sum(ws_ext_sales_price) AS total FROM web_sales, customer, item
        WHERE ws_customer_sk = c_customer_sk AND ws_item_sk = i_item_sk
          AND (substr(c_zip, 1, 5) IN ('24128', '76232')
               OR i_item_id IN (SELECT i_item_id FROM item WHERE i_item_sk IN (2, 3, 5, 7, 11)))
        GROUP BY c_zip""",
    "q47_the_month_before_and_after": """
        WITH v1 AS (SELECT i_category, d_year, d_moy, sum(ss_ext_sales_price) AS sum_sales,
                    avg(sum(ss_ext_sales_price)) OVER (PARTITION BY i_category, d_year) AS avg_monthly_sales,
                    rank() OVER (PARTITION BY i_category ORDER BY d_year, d_moy) AS rn
                    FROM item, store_sales, date_dim WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
                      AND (d_year = 2000 OR (d_year = 1999 AND d_moy = 12) OR (d_year = 2001 AND d_moy = 1))
                    GROUP BY i_category, d_year, d_moy)
        SELECT v1.i_category, v1.d_year, v1.d_moy, v1.avg_monthly_sales, v1.sum_sales,
               before.sum_sales AS psum, after.sum_sales AS nsum
        FROM v1, v1 before, v1 after
        WHERE v1.i_category = before.i_category AND v1.i_category = after.i_category
          AND v1.rn = before.rn + 1 AND v1.rn = after.rn - 1 AND v1.avg_monthly_sales > 0
          AND CASE WHEN v1.avg_monthly_sales > 0 THEN abs(v1.sum_sales - v1.avg_monthly_sales) / v1.avg_monthly_sales
              END > 0.1""",
    "q51_cumulative_sums_meet": """
        WITH web AS (SELECT ws_item_sk AS item_sk, d_date, sum(sum(ws_ext_sales_price)) OVER
                     (PARTITION BY ws_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume
                     FROM web_sales, date_dim WHERE ws_sold_date_sk = d_date_sk GROUP BY ws_item_sk, d_date),
        shop AS (SELECT ss_item_sk AS item_sk, d_date, sum(sum(ss_ext_sales_price)) OVER
                 (PARTITION BY ss_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS cume
                 FROM store_sales, date_dim WHERE ss_sold_date_sk = d_date_sk GROUP BY ss_item_sk, d_date)
        SELECT * FROM (SELECT item_sk, d_date, web_sales_, shop_sales,
            max(web_sales_) OVER (PARTITION BY item_sk ORDER BY d_date
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS web_cumulative,
            max(shop_sales) OVER (PARTITION BY item_sk ORDER BY d_date
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS shop_cumulative
            FROM (SELECT coalesce(web.item_sk, shop.item_sk) AS item_sk, coalesce(web.d_date, shop.d_date) AS d_date,
                         web.cume AS web_sales_, shop.cume AS shop_sales
                  FROM web FULL OUTER JOIN shop ON web.item_sk = shop.item_sk AND web.d_date = shop.d_date) x) y
        WHERE web_cumulative > shop_cumulative""",
    "q67_first_of_each_category": """
        SELECT * FROM (SELECT i_category, i_class, s_store_name, sumsales,
                              rank() OVER (PARTITION BY i_category ORDER BY sumsales DESC) AS rk
            FROM (SELECT i_category, i_class, s_store_name, sum(coalesce(ss_list_price * ss_quantity, 0)) AS sumsales
                  FROM store_sales, store, item WHERE ss_item_sk = i_item_sk AND ss_store_sk = s_store_sk
                  GROUP BY ROLLUP (i_category, i_class, s_store_name)) dw1) dw2
        WHERE rk <= 3""",
    "q69_in_this_channel_only": """
        SELECT c_last_name, count(*) AS cnt FROM customer c
        WHERE EXISTS (SELECT * FROM store_sales, date_dim WHERE c_customer_sk = ss_customer_sk
                      AND ss_sold_date_sk = d_date_sk AND d_year > 1999)
          AND NOT EXISTS (SELECT * FROM web_sales, date_dim WHERE c_customer_sk = ws_customer_sk
                          AND ws_sold_date_sk = d_date_sk AND d_moy > 2)
        GROUP BY c_last_name""",
    "q70_the_best_states": """
        SELECT sum(ss_net_profit) AS total_sum, s_state, s_county, grouping(s_state) + grouping(s_county) AS level
        FROM store_sales, store WHERE s_store_sk = ss_store_sk AND s_state IN (
            SELECT s_state FROM (SELECT s_state, rank() OVER (PARTITION BY s_state ORDER BY sum(ss_net_profit) DESC)
                                 AS r FROM store_sales, store WHERE s_store_sk = ss_store_sk GROUP BY s_state) tmp1
            WHERE r <= 5)
        GROUP BY ROLLUP (s_state, s_county)""",
    "q75_less_than_the_year_before": """
        WITH all_sales AS (SELECT d_year, i_brand, sum(cnt) AS sales_cnt, sum(amt) AS sales_amt FROM (
            SELECT d_year, i_brand, ss_quantity - coalesce(sr_number, 0) AS cnt,
                   ss_ext_sales_price - coalesce(sr_return_amt, 0.0) AS amt
            FROM store_sales JOIN item ON i_item_sk = ss_item_sk JOIN date_dim ON d_date_sk = ss_sold_date_sk
            LEFT JOIN store_returns ON ss_number = sr_number AND ss_item_sk = sr_item_sk
            UNION SELECT d_year, i_brand, ws_quantity AS cnt, ws_ext_sales_price AS amt
            FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk) detail
            GROUP BY d_year, i_brand)
        SELECT prev.d_year AS prev_year, curr.d_year AS year, curr.i_brand, prev.sales_cnt AS prev_cnt,
               curr.sales_cnt AS curr_cnt, curr.sales_amt - prev.sales_amt AS amt_diff
        FROM all_sales curr, all_sales prev
        WHERE curr.i_brand = prev.i_brand AND curr.d_year = prev.d_year + 1 AND prev.sales_cnt <> 0
          AND CAST(curr.sales_cnt AS DECIMAL(17,2)) / CAST(prev.sales_cnt AS DECIMAL(17,2)) < 0.9""",
    "q76_sales_without_a_customer": """
        SELECT channel, col_name, d_year, i_category, count(*) AS sales_cnt, sum(ext_sales_price) AS amt FROM (
            SELECT 'shop' AS channel, 'ss_customer_sk' AS col_name, d_year, i_category, ss_ext_sales_price AS
                ext_sales_price FROM store_sales, item, date_dim
            WHERE ss_customer_sk IS NULL AND ss_sold_date_sk = d_date_sk AND ss_item_sk = i_item_sk
            UNION ALL SELECT 'web', 'ws_customer_sk', d_year, i_category, ws_ext_sales_price
            FROM web_sales, item, date_dim
            WHERE ws_customer_sk IS NULL AND ws_sold_date_sk = d_date_sk AND ws_item_sk = i_item_sk) foo
        GROUP BY channel, col_name, d_year, i_category""",
    "q87_not_in_the_other_channel": """
        SELECT count(*) AS n FROM ((SELECT DISTINCT c_last_name, c_first_name, d_date
            FROM store_sales, date_dim, customer WHERE ss_sold_date_sk = d_date_sk AND ss_customer_sk = c_customer_sk)
            EXCEPT (SELECT DISTINCT c_last_name, c_first_name, d_date FROM web_sales, date_dim, customer
            WHERE ws_sold_date_sk = d_date_sk AND ws_customer_sk = c_customer_sk)) cool""",
    "q90_a_ratio_of_counts": """
        SELECT CAST(amc AS DECIMAL(15,4)) / CAST(nullif(pmc, 0) AS DECIMAL(15,4)) AS am_pm_ratio FROM
        (SELECT count(*) AS amc FROM web_sales, date_dim WHERE ws_sold_date_sk = d_date_sk AND d_moy < 3) am,
        (SELECT count(*) AS pmc FROM web_sales, date_dim WHERE ws_sold_date_sk = d_date_sk AND d_moy > 2) pm""",
    "q97_one_channel_or_both": """
        WITH ssci AS (SELECT ss_customer_sk AS customer_sk, ss_item_sk AS item_sk FROM store_sales
                      GROUP BY ss_customer_sk, ss_item_sk),
        wsci AS (SELECT ws_customer_sk AS customer_sk, ws_item_sk AS item_sk FROM web_sales
                 GROUP BY ws_customer_sk, ws_item_sk)
        SELECT sum(CASE WHEN ssci.customer_sk IS NOT NULL AND wsci.customer_sk IS NULL THEN 1 ELSE 0 END) AS shop_only,
               sum(CASE WHEN ssci.customer_sk IS NULL AND wsci.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS web_only,
               sum(CASE WHEN ssci.customer_sk IS NOT NULL AND wsci.customer_sk IS NOT NULL THEN 1 ELSE 0 END) AS both
        FROM ssci FULL OUTER JOIN wsci ON ssci.customer_sk = wsci.customer_sk AND ssci.item_sk = wsci.item_sk""",
}
