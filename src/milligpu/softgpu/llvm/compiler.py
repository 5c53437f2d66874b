"""LLVM itself: IR text to an object file for this machine's CPU.

llvmlite is LLVM in one wheel: the node needs no compiler, linker or headers, and no process per module. A resident
compiler translates a kernel in tens of milliseconds, where a C compiler takes hundreds.
"""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import llvmlite.binding as llvm

from milligpu.softgpu.llvm.effort import Effort, effort_for
from milligpu.softgpu.llvm.module import IMAGE_VERSION, module_ir
from milligpu.softgpu.ptx.errors import BadPtx
from milligpu.softgpu.ptx.parse import parse

# Registers times basic blocks of one function; LLVM takes about a microsecond for each product.
_MOST_PROMOTIONS = 1_000_000


class Compiler:
    """Compiles modules one after the other; make one per process."""

    def __init__(self, *, timed: bool = False) -> None:
        self._timed = timed
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._optimizing = _machine(2)
        self._simple = _machine(0)

    def compile(self, ptx: str, *, simple: bool = False) -> bytes:
        """Return the object file, or raise `BadPtx`. `simple`: for modules that take too long to optimize."""
        parsed = parse(ptx)
        effort = Effort.PLAIN if simple else effort_for(parsed)
        machine = self._simple if effort is Effort.PLAIN else self._optimizing
        ir = module_ir(parsed, timed=self._timed, plain=effort is Effort.PLAIN)
        try:
            module = llvm.parse_assembly(ir, llvm.create_context())
        except RuntimeError as error:
            # LLVM may reject what our own checks accept; the client then gets an error, not a crash.
            raise BadPtx(0, f"no valid translation: {' '.join(str(error).split())[:200]}") from None
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=0 if effort is Effort.PLAIN else 2)
        options.loop_vectorization = effort is Effort.FULL
        options.slp_vectorization = effort is not Effort.PLAIN
        builder = llvm.create_pass_builder(machine, options)
        if effort is not Effort.PLAIN:
            builder.getModulePassManager().run(module, builder)
        elif not simple and all(_promotes_fast(function) for function in module.functions):
            passes = llvm.create_new_module_pass_manager()
            passes.add_sroa_pass()
            passes.run(module, builder)
        return machine.emit_object(module)


def _promotes_fast(function: llvm.ValueRef) -> bool:
    """Whether registers can become values: LLVM goes through all blocks for each register."""
    blocks = registers = 0
    for block in function.blocks:
        blocks += 1
        if blocks == 1:
            registers = sum(each.opcode == "alloca" for each in block.instructions)
    return blocks * registers < _MOST_PROMOTIONS


def _machine(level: int) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="pic",
        codemodel="small",
    )


def fingerprint() -> str:
    """Everything besides the PTX that compiled code depends on; part of the cache key."""
    version = ".".join(map(str, llvm.llvm_version_info))
    features = llvm.get_host_cpu_features().flatten()
    return f"image {IMAGE_VERSION}, llvm {version}, {llvm.get_host_cpu_name()}, {features}"
