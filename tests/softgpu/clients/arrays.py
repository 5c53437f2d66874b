"""Arrays: creation, copies by row, rectangle and box, and what is refused; prints {name: bool}."""

import json

import numpy as np
from cuda.bindings import driver
from driver import check, start, upload

FLOAT = driver.CUarray_format.CU_AD_FORMAT_FLOAT
HOST, ARRAY = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_ARRAY
WIDTH, HEIGHT, DEPTH = 37, 11, 5
GIVEN = np.arange(WIDTH * HEIGHT * DEPTH, dtype=np.float32).reshape(DEPTH, HEIGHT, WIDTH)


def box(width: int, height: int, depth: int, flags: int = 0) -> driver.CUDA_ARRAY3D_DESCRIPTOR:
    shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth = width, height, depth
    shape.Format, shape.NumChannels, shape.Flags = FLOAT, 1, flags
    return shape


def flat(width: int, height: int) -> driver.CUDA_ARRAY_DESCRIPTOR:
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.Format, shape.NumChannels = width, height, FLOAT, 1
    return shape


def rows() -> bool:
    first, second = (check(driver.cuArrayCreate(flat(WIDTH, 0))) for _ in range(2))
    row, found = GIVEN[0, 0].copy(), np.zeros(WIDTH, np.float32)
    check(driver.cuMemcpyHtoA(first, 0, row.ctypes.data, row.nbytes))
    check(driver.cuMemcpyAtoA(second, 8, first, 0, row.nbytes - 8))
    check(driver.cuMemcpyDtoA(second, 0, upload(row[:2].copy()), 8))
    check(driver.cuMemcpyAtoH(found.ctypes.data, second, 0, found.nbytes))
    return bool((found == np.concatenate([row[:2], row[:-2]])).all())


def copy_of_box(to: dict, source: dict, width: int, height: int, depth: int) -> tuple:
    copy = driver.CUDA_MEMCPY3D()
    for name, value in {**to, **source}.items():
        setattr(copy, name, value)
    copy.WidthInBytes, copy.Height, copy.Depth = 4 * width, height, depth
    return driver.cuMemcpy3D(copy)


def boxes() -> tuple[bool, bool]:
    array = check(driver.cuArray3DCreate(box(WIDTH, HEIGHT, DEPTH)))
    found = np.zeros((2, 3, 4), np.float32)
    host = {"srcMemoryType": HOST, "srcHost": GIVEN.ctypes.data, "srcPitch": 4 * WIDTH, "srcHeight": HEIGHT}
    check(copy_of_box({"dstMemoryType": ARRAY, "dstArray": array}, host, WIDTH, HEIGHT, DEPTH))
    corner = {"srcMemoryType": ARRAY, "srcArray": array, "srcXInBytes": 4 * 5, "srcY": 6, "srcZ": 2}
    target = {"dstMemoryType": HOST, "dstHost": found.ctypes.data, "dstPitch": 16, "dstHeight": 3}
    check(copy_of_box(target, corner, 4, 3, 2))
    beyond = copy_of_box(target, corner, 4, 3, 4)[0]
    same = bool((found == GIVEN[2:4, 6:9, 5:9]).all())
    described = check(driver.cuArray3DGetDescriptor(array))
    check(driver.cuArrayDestroy(array))
    gone = driver.cuArrayDestroy(array)[0]
    after = copy_of_box(target, corner, 4, 3, 2)[0]
    return same and described.Depth == DEPTH, [beyond.name, gone.name, after.name] == [
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_HANDLE",
        "CUDA_ERROR_INVALID_HANDLE",
    ]


def ends_with_its_context() -> bool:
    free = check(driver.cuMemGetInfo())[0]
    context = check(driver.cuCtxCreate(None, 0, 0))
    array = check(driver.cuArrayCreate(flat(1 << 20, 16)))
    taken = free - check(driver.cuMemGetInfo())[0]
    check(driver.cuCtxDestroy(context))
    left = free - check(driver.cuMemGetInfo())[0]
    gone = driver.cuArrayGetDescriptor(array)[0].name == "CUDA_ERROR_INVALID_HANDLE"
    return gone and taken >= 64 << 20 and left == 0


start()
same, refused = boxes()
sparse = driver.cuArray3DCreate(box(64, 64, 1, 0x40))[0].name == "CUDA_ERROR_NOT_SUPPORTED"
print(
    json.dumps(
        {
            "rows": rows(),
            "boxes": same,
            "refused": refused and sparse,
            "ends with its context": ends_with_its_context(),
        }
    )
)
