//! Programs that several tests begin with, and the models that two of them are of.

/// The second block on rank 1, the first on rank 0.
pub const STAGES: &str = "table 9 %y sum
from 0 :,:
to 1 :,:
piece 0 0 :,:
table 10 %y sum
from 1 :,:
to 0 :,:
piece 0 0 :,:
ranks 1
block 1
shard v %v :,:
receive 9 -> y
call 0 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 0 ds -> dy
send 10 dy
ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
output none
send 9 y
backward
receive 10 -> dy
grad 0 dy ->
";

/// Each block has its own parameter, whose gradients its two ranks reduce with the last micro-batch.
pub const ROWS: &str = "group 0,1 2,3
table 9 %y sum
from 0 0..2,:
from 1 2..4,:
to 2 0..2,:
to 3 2..4,:
piece 0 0 0..2,:
piece 1 1 2..4,:
table 10 %y sum
from 2 0..2,:
from 3 2..4,:
to 0 0..2,:
to 1 2..4,:
piece 0 0 0..2,:
piece 1 1 2..4,:
ranks 2,3
block 1
shard v %v :,:
receive 9 -> y
call 0 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
grad 0 ds -> dy
send 10 dy
reduce_gradients g0 v
ranks 0,1
shard w %w :,:
input x %x 0..2,: | 2..4,:
call 0 x, w -> y : y = aten.linear.default(x, w)
output none
send 9 y
backward
receive 10 -> dy
grad 0 dy ->
reduce_gradients g0 w
";

pub const ALONE: &str = "ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> dy
grad 0 dy ->
";

pub const MEAN: &str = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %c f64[8] = aten.mean.dim(%x, [0]) in \"\" at \"m.py:1\" nograd
op %o f64[8] = aten.mul.Tensor(%m, 0.9) in \"\" at \"m.py:2\" nograd
op %n f64[8] = aten.add.Tensor(%o, %c) in \"\" at \"m.py:3\" nograd
op %y f64[4,8] = aten.sub.Tensor(%x, %m) in \"\" at \"m.py:4\"
output %y
update \"mean\" %n
";

/// The first block reads the buffer, and the second one updates it.
pub const UPDATED: &str = "ranks 0
shard m %m :
input x %x :,:
call 0 x, m -> y : y = aten.sub.Tensor(x, m)
output y
block 1
input z %x :,:
call 1 z, m -> n : c = aten.mean.dim(z, [0]) nograd ; o = aten.mul.Tensor(m, 0.9) nograd ; n = aten.add.Tensor(o, c) nograd
update m n
";

/// Parameters that are divided, and gathered for each use.
pub const DIVIDED: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
hold v_part %v 0..4,: | 4..8,:
copy w w_part 0 2 :,:
copy v v_part 0 2 :,:
input x %x 0..2,: | 2..4,:
gather g0 w, v
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w, v
all_reduce g0 sum s -> t
output t
seed ds
gather g0 w, v
grad 1 ds -> dy
grad 0 dy ->
release w, v
scatter g0 w, v
";

pub const RELU: &str = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %q f64[4,8] = aten.relu.default(%x) in \"\" at \"m.py:1\"
op %y f64[4,8] = aten.sub.Tensor(%q, %m) in \"\" at \"m.py:2\"
output %y
";

/// The first block keeps a value for the second one.
pub const KEPT: &str = "ranks 0
shard m %m :
input x %x :,:
call 0 x -> q : q = aten.relu.default(x)
keep 0 q
output none
block 1
call 1 p, m -> y : y = aten.sub.Tensor(p, m)
";
