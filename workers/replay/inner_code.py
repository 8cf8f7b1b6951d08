"""How functions are compiled that only compiled functions call: to LLVM's language, for their callers to take in.

numba gives every function machine code and two wrappers for Python. Of these functions nobody needs either, and there are
hundreds: a third of the kernel's compilation went into them, and most of its memory. The entry that takes them in replays as
fast as before.

Source: numba's compiler pipeline (`numba.core.typed_passes`) and code library (`numba.core.codegen`), whose interfaces the
lock pins.
"""

import ctypes
from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_REFUSE = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value
"""What Python calls instead of such a function: it raises TypeError."""


class InnerLibrary(JITCodeLibrary):
    """Optimised once, and never handed to the engine that makes machine code."""

    def finalize(self) -> None:
        """Take in the libraries of callees."""
        self._raise_if_finalized()  # type: ignore[no-untyped-call]
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        passes, builder = self._codegen._module_pass_manager()  # type: ignore[no-untyped-call]
        passes.run(self._final_module, builder)
        self._final_module.verify()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call]
class InnerLowering(NativeLowering):
    """numba's own pass with another library, and a handle instead of a function that Python could call."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        """Write the function's code into the library."""
        codegen, name = state.targetctx.codegen(), state.func_id.func_qualname
        state.library = InnerLibrary(codegen, name)  # type: ignore[no-untyped-call]
        state.flags.no_compile = True
        super().run_pass(state)  # type: ignore[no-untyped-call]
        made = state["cr"]
        owner, said = made.fndesc.lookup_module(), "called by compiled code only"
        handle = _dynfunc.make_function(owner, name, said, _REFUSE, made.env, (state.library,))
        state.targetctx.insert_user_function(handle, made.fndesc, [state.library])
        state["cr"] = made._replace(cfunc=handle)
        return True


class InnerCompiler(Compiler):
    """numba's pipeline with `InnerLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The pipelines, each ready to run."""
        pipelines: list[Any] = super().define_pipelines()  # type: ignore[no-untyped-call]
        for each in pipelines:
            each.passes = [(InnerLowering if step is NativeLowering else step, said) for step, said in each.passes]
            each._finalized = False
            each.finalize()
        return pipelines
