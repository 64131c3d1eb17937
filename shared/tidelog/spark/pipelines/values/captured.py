"""Evaluates SQL expressions row by row and captures their errors. An error does not end the query, and differs from
an expression whose value is NULL.

Spark's ``TryEval`` is the expression behind its ``try_…`` functions. It is null if the evaluation of what is in it
fails, and otherwise has that value. Since a struct is never null by itself, ``TryEval(struct(expression))`` is null
exactly if the expression fails, also where the expression itself is NULL.

Spark's code generation computes a subexpression that occurs twice once, ahead of both places and outside of every
``TryEval``, where its error would end the query. It does not do so for what is in the branch of a condition; so the
expression is in one, under a condition that always holds and that Spark cannot know to hold.

``TryEval`` is no public part of PySpark: ``tests/spark/test_values.py`` pins what is said here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column
from pyspark.sql import functions as f

from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE = "value"
"""Field of a captured struct with the expression's value."""


def with_captured(table: DataFrame, name: str, expression: str, offset: str, what: str) -> DataFrame:
    """Return a table with a further column ``name``: a struct with the value of an SQL expression, or null in each
    row for which the expression fails. ``offset`` is a column of the table with the records' offsets. ``what``
    says what the expression is, for errors. Raises ``ConfigError`` if it is no expression over the columns
    of the table, or if Spark is set to make NULL of errors."""
    if str(table.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() != "true":
        raise ConfigError(f"{what}: with spark.sql.ansi.enabled = false Spark makes NULL of errors: leave it true")
    try:
        value = f.when(f.col(offset) >= 0, f.struct(f.expr(expression).alias(VALUE)))
        return table.withColumn(name, _captured(table.sparkSession, value))
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"{what}: {_first_line(str(error))}") from None


def _first_line(text: str) -> str:
    """Return the first line of an error of Spark, which has the error; plans and marked places follow."""
    return text.strip().partition("\n")[0].rstrip(";")


def _captured(spark: SparkSession, column: Column) -> Column:
    """Return a column that is null where the evaluation of ``column`` fails."""
    jvm = spark._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    captured = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expressions.expression(column._jc))
    return Column(expressions.column(captured))
