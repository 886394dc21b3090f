"""The kernels of `ct_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def find_lines(
    firsts, middles, ups, places, lines, rows, columns, count,
    PARALLEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # What ct_lines.cross_planes does, in double precision: of each ray the place on plane 0 of its axis and the change
    # from plane to plane, along the other two axes; the step; the axis. Vectors are x, y, z; places the spacing and the
    # origin along z, y, x.
    view = tl.program_id(1).to(tl.int64)
    ray = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = ray < rows * columns
    row, column = ray // columns, ray % columns
    high = row.to(tl.float64) - (rows - 1) * 0.5
    at = middles + (view * columns + column) * 3
    x = tl.load(at, mask=inside, other=0.0) + high * tl.load(ups + view * 3)
    y = tl.load(at + 1, mask=inside, other=0.0) + high * tl.load(ups + view * 3 + 1)
    z = tl.load(at + 2, mask=inside, other=0.0) + high * tl.load(ups + view * 3 + 2)
    first_x, first_y = tl.load(firsts + view * 3), tl.load(firsts + view * 3 + 1)
    first_z = tl.load(firsts + view * 3 + 2)
    if PARALLEL:
        way_x, way_y, way_z = first_x + 0 * x, first_y + 0 * x, first_z + 0 * x
    else:
        way_x, way_y, way_z = x - first_x, y - first_y, z - first_z
    length = tl.sqrt(way_x * way_x + way_y * way_y + way_z * way_z)
    z = (z - tl.load(places + 3)) / tl.load(places)
    y = (y - tl.load(places + 4)) / tl.load(places + 1)
    x = (x - tl.load(places + 5)) / tl.load(places + 2)
    slope_z, slope_y, slope_x = way_z / tl.load(places), way_y / tl.load(places + 1), way_x / tl.load(places + 2)
    along_z = (tl.abs(slope_z) >= tl.abs(slope_y)) & (tl.abs(slope_z) >= tl.abs(slope_x))
    along_y = (tl.abs(slope_y) >= tl.abs(slope_x)) & (along_z == 0)
    fast = tl.where(along_z, slope_z, tl.where(along_y, slope_y, slope_x))
    own = tl.where(along_z, z, tl.where(along_y, y, x))
    one = tl.where(along_z, slope_y, slope_z) / fast
    two = tl.where(along_z | along_y, slope_x, slope_y) / fast
    start_one = tl.where(along_z, y, z) - own * one
    start_two = tl.where(along_z | along_y, x, y) - own * two
    to = lines + view * rows * columns + ray
    tl.store(to, start_one.to(tl.float32), mask=inside)
    tl.store(to + count, one.to(tl.float32), mask=inside)
    tl.store(to + 2 * count, start_two.to(tl.float32), mask=inside)
    tl.store(to + 3 * count, two.to(tl.float32), mask=inside)
    tl.store(to + 4 * count, (length / tl.abs(fast)).to(tl.float32), mask=inside)
    tl.store(to + 5 * count, tl.where(along_z, 0.0, tl.where(along_y, 1.0, 2.0)).to(tl.float32), mask=inside)


@triton.jit
def back_project_rays(
    data, lines, maps, out, views, rows, columns, count, depth, height, width, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program a block of voxels, which look up the few rays of each view that may come near, in order. A map has for
    # the column, the row and the distance the share of z, y, x and 1, and then how far a ray's column and row may be.
    image = tl.program_id(1).to(tl.int64)
    rays = rows * columns + 0 * image  # of 64 bits, as the image's number is
    voxels = depth * (height * width + 0 * image)
    data += image * views * rays
    voxel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < voxels
    x, y = (voxel % width).to(tl.float32), (voxel // width % height).to(tl.float32)
    z = (voxel // width // height).to(tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for view in range(views):
        m = maps + view * 14
        distance = tl.load(m + 8) * z + tl.load(m + 9) * y + tl.load(m + 10) * x + tl.load(m + 11)
        column = (tl.load(m) * z + tl.load(m + 1) * y + tl.load(m + 2) * x + tl.load(m + 3)) / distance
        row = (tl.load(m + 4) * z + tl.load(m + 5) * y + tl.load(m + 6) * x + tl.load(m + 7)) / distance
        # Those far off the detector are brought to its edge, where there is nothing, so that they fit an integer.
        column = tl.minimum(tl.maximum(column, -64.0), columns + 64.0)
        row = tl.minimum(tl.maximum(row, -64.0), rows + 64.0)
        first_column = tl.ceil(column - tl.load(m + 12)).to(tl.int32)
        first_row = tl.ceil(row - tl.load(m + 13)).to(tl.int32)
        if ROWS == 1:
            first_row = first_row * 0
        for i in tl.static_range(ROWS):
            for j in tl.static_range(COLUMNS):
                r, c = first_row + i, first_column + j
                there = inside & (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
                ray = view * rays + r * columns + c
                at = lines + ray
                axis = tl.load(at + 5 * count, mask=there, other=2.0)
                plane = tl.where(axis == 0, z, tl.where(axis == 1, y, x))
                one = tl.load(at, mask=there, other=-9.0) + plane * tl.load(at + count, mask=there, other=0.0)
                two = tl.load(at + 2 * count, mask=there, other=-9.0)
                two += plane * tl.load(at + 3 * count, mask=there, other=0.0)
                weight = tl.maximum(1 - tl.abs(one - tl.where(axis == 0, y, z)), 0.0)
                weight *= tl.maximum(1 - tl.abs(two - tl.where(axis == 2, y, x)), 0.0)
                weight *= tl.load(at + 4 * count, mask=there, other=0.0)
                total += weight * tl.load(data + ray, mask=there, other=0.0)
    tl.store(out + image * voxels + voxel, total, mask=inside)
