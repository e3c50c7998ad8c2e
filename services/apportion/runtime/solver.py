"""The HiGHS solver for the linear program from which prices are computed.

The solver runs without Python's global lock, so decisions continue in the meantime. One thread and
the simplex method make it deterministic."""

from typing import Final

import highspy
import numpy as np

from apportion.core.placement.pricing.program import NodeType, Program, Solution, appraise, build
from apportion.core.placement.pricing.sizes import SeenShape
from apportion_schemas import PricesLearnt

TIME_LIMIT_S: Final = 60.0


class NoPrices(Exception):
    """Error: the linear program has no usable solution. The message has the reason."""


def solve(program: Program) -> Solution:
    """Return the optimal plan and its shadow prices. Raises NoPrices without an optimum."""
    rows, columns = len(program.limits), len(program.cost)
    if not columns:  # no pod fits anywhere, so there is no plan and nothing is scarce
        return Solution(np.zeros(rows), np.zeros(rows))
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = rows, columns
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = np.full(rows, -highspy.kHighsInf), program.limits
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kColwise
    starts = np.searchsorted(program.column, np.arange(columns + 1))
    matrix.start_ = starts.astype(np.int32)
    matrix.index_, matrix.value_ = program.row, program.value
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False), ("threads", 1), ("solver", "simplex"), ("time_limit", TIME_LIMIT_S),
    ):  # fmt: skip
        solver.setOptionValue(option, value)
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise NoPrices(f"the solver ended with {solver.modelStatusToString(status)}")
    solution = solver.getSolution()
    return Solution(np.abs(np.array(solution.row_dual)), np.array(solution.row_value))


def learn(shapes: list[SeenShape], types: list[NodeType], *, pods: int) -> PricesLearnt:
    """Compute prices from node types and the requests of `pods` pods. Raises NoPrices."""
    program = build(shapes, types)
    return appraise(shapes, types, program, solve(program), pods=pods)
