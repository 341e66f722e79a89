//! What arrives by an exchange: pieces that are alike or not, cover their target or not, and are shares of some kind.

use crate::support::{faults, graph, proof};

const RELU: &str = "input %x f64[6] 0
op %y f64[6] = aten.relu.default(%x) in \"\" at \"m.py:1\"
output %y
";

/// Of the first region a third is missing; of what is taken of it nothing is. No two pieces overlap, so it does not matter
/// by what the table would reduce them.
const TAKEN: &str = "table 1 %x max
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
table 2 %x sum
from 0 :
to 0 0..4
piece 0 0 0..4
ranks 0
input x %x :
slice x -> a : [6] 0..2
slice x -> b : [6] 2..4
slice x -> e : [6] 4..6
exchange 1 a, b -> c
exchange 2 c -> d
call 0 d -> y : y = aten.relu.default(d)
output y local 0..4
ranks 1
input x %x :
slice x -> e : [6] 4..6
call 0 e -> y : y = aten.relu.default(e)
output y local 4..6
";

#[test]
fn what_is_taken_of_a_region_with_gaps_may_have_none() {
    proof(&graph(RELU), TAKEN);
    let wider = TAKEN.replace("to 0 0..4\npiece 0 0 0..4", "to 0 0..5\npiece 0 0 0..5");
    let found = faults(&graph(RELU), &wider.replace("output y local 0..4", "output y local 0..5"));
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0505"), "{found:?}");
}

const AMAX: &str = "input %x f64[4,8] 0
op %m f64[4] = aten.amax.default(%x, [1]) in \"\" at \"m.py:1\"
output %m
";

/// Each rank has half of the columns, and the largest of these; all of it, of some rows.
const MIXED: &str = "group 0,1
table 1 %m max
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
table 2 %m max
from 0 :
to 0 0..2
piece 0 0 0..2
ranks 0
input x %x :,0..4
call 0 x -> p : p = aten.amax.default(x, [1])
all_reduce g0 max p -> t
slice t -> a : [4] 0..2
slice p -> b : [4] 2..4
exchange 1 a, b -> c
exchange 2 c -> d
output d local 0..2
ranks 1
input x %x :,4..8
call 0 x -> p : p = aten.amax.default(x, [1])
all_reduce g0 max p -> t
slice t -> d : [4] 2..4
output d local 2..4
";

#[test]
fn a_share_of_a_maximum_may_lie_beside_all_of_it() {
    proof(&graph(AMAX), MIXED);
    let other = MIXED.replace("from 0 :\nto 0 0..2\npiece 0 0 0..2", "from 0 :\nto 0 2..4\npiece 0 0 2..4");
    let other = other.replace("output d local 0..2", "output d local 2..4");
    assert!(!faults(&graph(AMAX), &other).is_empty());
}

/// Each rank gives the other one its share.
const SWAPPED: &str = "group 0,1
table 1 %m sum
from 0 :
from 1 :
to 0 :
to 1 :
piece 1 0 :
piece 0 1 :
ranks 0,1
input x %x :,0..4 | :,4..8
call 0 x -> p : p = aten.amax.default(x, [1])
exchange 1 p -> q
all_reduce g0 max q -> t
output t
";

#[test]
fn one_piece_is_what_it_is_of() {
    proof(&graph(AMAX), SWAPPED);
    let twice = SWAPPED.replace("piece 0 1 :", "piece 1 1 :");
    assert!(!faults(&graph(AMAX), &twice).is_empty());
}

const EXPANDED: &str = "input %x f64[1,4] 0
op %e f64[4,4] = aten.expand.default(%x, [4, 4]) in \"\" at \"m.py:1\"
op %s f64[4] = aten.sum.dim_IntList(%e, [0]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%s, 2.0) in \"\" at \"m.py:3\"
output %y
";

/// Each rank has two of four equal terms, and moves them in two pieces.
const TWICE: &str = "group 0,1
table 1 %s sum
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
table 2 %s sum
from 1 0..2
from 1 2..4
to 1 :
piece 0 0 0..2
piece 1 0 2..4
ranks 0
input x %x :
call 0 x -> a : e = aten.expand.default(x, [1, 4]) ; a = aten.sum.dim_IntList(e, [0])
call 1 x -> b : f = aten.expand.default(x, [1, 4]) ; b = aten.sum.dim_IntList(f, [0])
add a, b -> c
slice c -> lo : [4] 0..2
slice c -> hi : [4] 2..4
exchange 1 lo, hi -> d
call 2 d -> y : y = aten.mul.Tensor(d, 2.0)
all_reduce g0 sum y -> z
output z
ranks 1
input x %x :
call 0 x -> a : e = aten.expand.default(x, [1, 4]) ; a = aten.sum.dim_IntList(e, [0])
call 1 x -> b : f = aten.expand.default(x, [1, 4]) ; b = aten.sum.dim_IntList(f, [0])
add a, b -> c
slice c -> lo : [4] 0..2
slice c -> hi : [4] 2..4
exchange 2 lo, hi -> d
call 2 d -> y : y = aten.mul.Tensor(d, 2.0)
all_reduce g0 sum y -> z
output z
";

/// A term that is there twice in each piece is there twice in all of it.
#[test]
fn equal_terms_stay_as_many() {
    proof(&graph(EXPANDED), TWICE);
    let once = TWICE.replacen("add a, b -> c", "add a -> c", 1);
    let found = faults(&graph(EXPANDED), &once);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0512"), "{found:?}");
}
