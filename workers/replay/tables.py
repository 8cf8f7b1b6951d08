# mypy: disable-error-code="no-untyped-call, untyped-decorator"
"""Arrays as compiled functions see them: rows of numbers that are read and written without the price of numpy's rules.

A negative index does not count from the end (there is none in the kernel), and the compiler is told that two tables never
share memory: a value read once stays known while other tables are written (ADR 10).
"""

import operator
import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, lower_builtin, register_model
from numba.np.arrayobj import make_array, populate_array

IS_CHECKED = os.environ.get("SPICA_CHECK_INDICES") == "1"
"""For tests of the kernel itself: an index outside its table ends the process (SIGILL) instead of reading elsewhere."""

_CACHE_LINE = 64
_TBAA_ROOT, _ZERO = "tables of the replay", ir.Constant(ir.IntType(64), 0)


class Table(types.Array):
    """Type of one table of the address book, [n] or [n, columns]."""

    def __init__(self, name: str, item: np.dtype[Any], columns: int) -> None:
        self.table, self.row_bytes = name, item.itemsize * max(columns, 1)
        super().__init__(from_dtype(item), 2 if columns else 1, "C", name=f"table({name})")

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells tables apart."""
        return self.table, self.dtype, self.ndim

    @property
    def mangling_args(self) -> tuple[str, tuple[object, ...]]:
        """What tells them apart in the names of compiled functions."""
        return "Table", (self.table,)


register_model(Table)(models.ArrayModel)


def accessor(name: str, place: int, dtype: type, columns: int) -> Any:
    """Compiled function that gives back the table at a place of an address book, [n] or [n, columns].

    An intrinsic, because compiled functions without reference counts may not return arrays.
    """
    item = np.dtype(dtype)
    table = Table(name, item, columns)

    @intrinsic
    def view(_typing: Any, st: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            book = make_array(signature.args[0])(context, builder, arguments[0]).data
            address, rows = (builder.load(cgutils.gep(builder, book, place + i)) for i in (0, 1))
            # Arrays stay where they are while compiled code runs: an address once read need not be read again.
            for entry in (address, rows):
                entry.set_metadata("invariant.load", builder.module.add_metadata([]))
            itemsize = context.get_constant(types.intp, item.itemsize)
            array = make_array(table)(context, builder)
            shape, strides = [rows], [itemsize]
            if columns:
                shape.append(context.get_constant(types.intp, columns))
                strides.insert(0, context.get_constant(types.intp, item.itemsize * columns))
            data = builder.inttoptr(address, context.get_data_type(table.dtype).as_pointer())
            populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
            return array._getvalue()

        return table(st), code

    return view


def _pointer(context: Any, builder: Any, table: Table, array: Any, index_type: Any, index: Any) -> Any:
    kinds, parts = (index_type,), [index]
    if table.ndim > 1:
        kinds, parts = index_type.types, cgutils.unpack_tuple(builder, index, len(index_type))
    assert len(kinds) == table.ndim, (table, index_type)
    assert all(isinstance(kind, types.Integer) for kind in kinds), (table, index_type)
    place, *column = (context.cast(builder, part, kind, types.intp) for part, kind in zip(parts, kinds, strict=True))
    view = make_array(table)(context, builder, array)
    if IS_CHECKED:
        for part, size in zip((place, *column), cgutils.unpack_tuple(builder, view.shape, table.ndim), strict=True):
            with builder.if_then(builder.icmp_unsigned(">=", part, size), likely=False):
                builder.call(builder.module.declare_intrinsic("llvm.trap", (), ir.FunctionType(ir.VoidType(), ())), ())
    if column:
        columns = cgutils.unpack_tuple(builder, view.shape, 2)[1]
        place = builder.add(builder.mul(place, columns), column[0])
    return builder.gep(view.data, [place])


@intrinsic
def fetch_ahead(_typing: Any, table: Any, row: Any) -> Any:
    """Bring a row of a table into the cache for writing while other work goes on; the row must exist."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        view = make_array(table)(context, builder, arguments[0])
        offset = builder.mul(
            context.cast(builder, arguments[1], row, types.intp), context.get_constant(types.intp, table.row_bytes)
        )
        i32, byte_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        start = builder.gep(builder.bitcast(view.data, byte_pointer), [offset])
        kind = ir.FunctionType(ir.VoidType(), (byte_pointer, i32, i32, i32))
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (byte_pointer,), kind)
        for line in range(0, table.row_bytes, _CACHE_LINE):
            place = builder.gep(start, [context.get_constant(types.intp, line)])
            builder.call(prefetch, (place, i32(1), i32(3), i32(1)))
        return context.get_dummy_value()

    return types.void(table, row), code


def _promise(builder: Any, access: Any, table: Table) -> None:
    """The access touches memory of this table alone."""
    module = builder.module
    root = module.add_metadata([_TBAA_ROOT])
    kind = module.add_metadata([table.table, root, _ZERO])
    access.set_metadata("tbaa", module.add_metadata([kind, kind, _ZERO]))


@lower_builtin(operator.getitem, Table, types.BaseTuple)
@lower_builtin(operator.getitem, Table, types.Integer)
def _read(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    table, index_type = signature.args
    value = builder.load(_pointer(context, builder, table, arguments[0], index_type, arguments[1]))
    _promise(builder, value, table)
    return value


@lower_builtin(operator.setitem, Table, types.BaseTuple, types.Any)
@lower_builtin(operator.setitem, Table, types.Integer, types.Any)
def _write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    table, index_type, value_type = signature.args
    value = context.cast(builder, arguments[2], value_type, table.dtype)
    pointer = _pointer(context, builder, table, arguments[0], index_type, arguments[1])
    _promise(builder, builder.store(value, pointer), table)
    return context.get_dummy_value()
