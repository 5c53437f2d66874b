"""LLVM itself: IR text to an object file for this machine's CPU.

llvmlite because it is LLVM as one wheel: no compiler, linker or headers on the node, no process to start per
module, and a resident one compiles a kernel in tens of milliseconds where a C compiler takes hundreds.
"""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import llvmlite.binding as llvm

from milligpu.softgpu.llvm.module import IMAGE_VERSION, module_ir
from milligpu.softgpu.ptx.errors import BadPtx
from milligpu.softgpu.ptx.parse import parse


class Compiler:
    """Compiles modules one after the other; make one per process."""

    def __init__(self, *, timed: bool = False) -> None:
        self._timed = timed
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        self._machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            reloc="pic",
            codemodel="small",
        )

    def compile(self, ptx: str) -> bytes:
        """The object file, or `BadPtx`."""
        ir = module_ir(parse(ptx), timed=self._timed)
        try:
            module = llvm.parse_assembly(ir, llvm.create_context())
        except RuntimeError as error:
            # What our own checks let through, LLVM's may not; a client sees the module refused, not a crash.
            raise BadPtx(0, f"no valid translation: {' '.join(str(error).split())[:200]}") from None
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        options.slp_vectorization = True
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return self._machine.emit_object(module)


def fingerprint() -> str:
    """What compiled code depends on besides the PTX: this belongs into a cache's key."""
    version = ".".join(map(str, llvm.llvm_version_info))
    features = llvm.get_host_cpu_features().flatten()
    return f"image {IMAGE_VERSION}, llvm {version}, {llvm.get_host_cpu_name()}, {features}"
