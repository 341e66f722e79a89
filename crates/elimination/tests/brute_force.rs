//! Beside all values tried one after the other.

use std::rc::Rc;

use elimination::{NEVER, Problem, Solver, Term};
use proptest::prelude::*;

const MOST: f64 = 1e9;

fn all(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |known, &size| {
        known.iter().flat_map(|it| (0..size).map(move |value| [&it[..], &[value]].concat())).collect()
    })
}

fn least(problem: &Problem) -> f64 {
    all(&problem.sizes).iter().map(|values| problem.cost(values)).fold(NEVER, f64::min)
}

/// Up to six variables of up to four values, under up to eight tables over one to three of them.
fn problems() -> impl Strategy<Value = Problem> {
    let sizes = prop::collection::vec(1_usize..5, 1..7);
    let scopes = prop::collection::vec((prop::collection::vec(0_usize..6, 1..4), any::<u64>()), 0..9);
    (sizes, scopes).prop_map(|(sizes, scopes)| {
        let terms = scopes.into_iter().map(|(scope, seed)| term(&sizes, scope, seed)).collect();
        Problem { sizes, terms }
    })
}

fn term(sizes: &[usize], scope: Vec<usize>, mut seed: u64) -> Term {
    let mut own: Vec<usize> = vec![];
    for variable in scope.into_iter().map(|one| one % sizes.len()) {
        if !own.contains(&variable) {
            own.push(variable);
        }
    }
    let entries: usize = own.iter().map(|variable| sizes[*variable]).product();
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let cost = (seed >> 33) % 20;
        if cost == 19 { NEVER } else { cost as f64 }
    };
    Term { scope: own, costs: (0..entries).map(|_| next()).collect::<Rc<[f64]>>() }
}

/// A few variables of many values, all connected.
fn wide_problems() -> impl Strategy<Value = Problem> {
    prop::collection::vec(any::<u64>(), 6).prop_map(|seeds| {
        let sizes = vec![30, 25, 20];
        let scopes = [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![2, 0]];
        let terms = scopes.into_iter().zip(seeds).map(|(scope, seed)| term(&sizes, scope, seed)).collect();
        Problem { sizes, terms }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn it_is_the_least_of_many_values(problem in wide_problems()) {
        let found = Solver::default().solve(&problem, MOST).expect("it is small");
        prop_assert_eq!(found.cost, least(&problem));
        prop_assert_eq!(problem.cost(&found.values), found.cost);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn it_is_the_least(problem in problems()) {
        let found = Solver::default().solve(&problem, MOST).expect("it is small");
        prop_assert_eq!(found.cost, least(&problem));
        if found.cost < NEVER {
            prop_assert_eq!(problem.cost(&found.values), found.cost);
        }
    }

    #[test]
    fn of_each_value_it_is_the_least(problem in problems()) {
        let mut solver = Solver::default();
        for variable in 0..problem.sizes.len() {
            let each = solver.each(&problem, variable, MOST).expect("it is small");
            for (value, cost) in each.into_iter().enumerate() {
                let with = all(&problem.sizes).into_iter().filter(|values| values[variable] == value);
                prop_assert_eq!(cost, with.map(|values| problem.cost(&values)).fold(NEVER, f64::min));
            }
        }
    }
}

/// So many layers that are alike.
fn chain(length: usize) -> Problem {
    let size = 20;
    let table: Rc<[f64]> = (0..size * size).map(|at| ((at * 7919) % 101) as f64).collect();
    Problem {
        sizes: vec![size; length],
        terms: (1..length).map(|at| Term { scope: vec![at - 1, at], costs: Rc::clone(&table) }).collect(),
    }
}

/// Layers that are alike cost no more than a few.
#[test]
fn what_repeats_is_eliminated_once() {
    let sums = |length: usize| Solver::default().solve(&chain(length), MOST).expect("it is small").sums;
    let (short, long) = (sums(50), sums(5000));
    assert_eq!(short.0, long.0);
    assert!(long.1 > 50.0 * long.0);
}

#[test]
fn what_is_too_wide_is_not_begun() {
    let scope: Vec<usize> = (0..3).collect();
    let problem =
        Problem { sizes: vec![100; 3], terms: vec![Term { scope, costs: vec![0.0; 1_000_000].into() }] };
    assert_eq!(Solver::default().solve(&problem, 1e5), None);
}

/// Wherever it is stopped nothing is given, or the same; and what a solver knows by then is still right.
#[test]
fn what_is_stopped_gives_nothing_wrong() {
    let problem = chain(6);
    let whole = Solver::default().solve(&problem, MOST).expect("it is small");
    let mut given = 0;
    for at in 0..40 {
        let (mut solver, looks) = (Solver::default(), std::cell::Cell::new(0));
        let stop = || looks.replace(looks.get() + 1) >= at;
        let found = solver.solve_until(&problem, MOST, &stop);
        assert!(found.as_ref().is_none_or(|found| *found == whole));
        given += usize::from(found.is_some());
        assert_eq!(
            solver.solve(&problem, MOST).map(|it| (it.cost, it.values)),
            Some((whole.cost, whole.values.clone()))
        );
    }
    assert!(given > 0 && given < 40, "{given}");
}

/// A chain of which each table is another.
fn various(length: usize, seed: usize) -> Problem {
    let size = 20;
    let table =
        |at: usize| (0..size * size).map(|it| ((it * 7919 + at * at * 31 + seed) % 1009) as f64).collect();
    Problem {
        sizes: vec![size; length],
        terms: (1..length).map(|at| Term { scope: vec![at - 1, at], costs: table(at) }).collect(),
    }
}

/// What has no room is given up, or solved with fewer values, and what is kept stays within the room.
#[test]
fn what_has_no_room_is_solved_nearly() {
    let never = || false;
    let problem = various(30, 0);
    let least = Solver::default().solve(&problem, MOST).expect("it is small");
    assert!(least.is_least);
    assert_eq!(Solver::default().solve_nearly(&problem, MOST, &never), Some(least.clone()));
    let mut solver = Solver::with_room(8_000);
    assert_eq!(solver.solve(&problem, MOST), None);
    let near = solver.solve_nearly(&problem, MOST, &never).expect("there is room for a few values");
    assert!(!near.is_least && near.cost >= least.cost);
    assert_eq!(near.cost, problem.cost(&near.values));
    assert_eq!(Solver::with_room(8_000).solve_nearly(&problem, MOST, &|| true), None);
}

/// Of few values the least is no less; with the best ones given it is the same.
#[test]
fn the_least_among_given_values() {
    let never = || false;
    let problem = various(12, 5);
    let least = Solver::default().solve(&problem, MOST).expect("it is small");
    let among = |given: &[Vec<usize>]| {
        Solver::default().solve_among(&problem, 1, given, MOST, &never).expect("it is small")
    };
    assert!(among(&[]).cost > least.cost && !among(&[]).is_least);
    let given: Vec<Vec<usize>> = least.values.iter().map(|value| vec![*value]).collect();
    assert_eq!(among(&given).cost, least.cost);
    // One solver is asked again and again.
    let mut solver = Solver::default();
    for count in [1, 4, 20, 4, 1] {
        let found = solver.solve_among(&problem, count, &given, MOST, &never).expect("it is small");
        assert_eq!((found.cost, found.is_least), (least.cost, count == 20));
    }
}

#[test]
fn a_solver_keeps_no_more_than_it_has_room_for() {
    let room = 400_000;
    let mut solver = Solver::with_room(room);
    let mut most = 0;
    for seed in 0..200 {
        let problem = various(10, seed);
        let found = solver.solve(&problem, MOST).map(|it| (it.cost, it.values));
        let alone = Solver::default().solve(&problem, MOST).map(|it| (it.cost, it.values));
        assert_eq!(found, alone);
        most = most.max(solver.entries());
    }
    assert!(room / 20 < most && most < room, "{most}");
}
