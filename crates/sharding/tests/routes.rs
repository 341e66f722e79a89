//! Laws of routes, on simulated devices.

use plan::random::Random;
use proptest::prelude::*;
use rules::Reduction;
use sharding::{Hop, Sharding, route};

use crate::common;
use crate::common::simulate::{apply, is_there, scatter};

fn follow(random: &mut Random, from: &Sharding, to: &Sharding) -> Result<Vec<Hop>, TestCaseError> {
    let Some(hops) = route(from, to, 4) else {
        return Err(TestCaseError::fail(format!("no route: {from:?} {to:?}")));
    };
    let (whole, mut held) = scatter(random, from);
    let mut at = from.clone();
    for hop in &hops {
        prop_assert_eq!(&hop.from, &at);
        held = apply(hop, &held);
        at = hop.to.clone();
        prop_assert!(is_there(&at, &held, &whole), "{:?}", hop);
    }
    // A route without hops may end with partial results in another order.
    prop_assert!(at == *to || hops.is_empty() && is_there(to, &held, &whole));
    Ok(hops)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn routes_lead_to_the_target_on_the_same_devices(seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, on) = (common::sizes(&mut random), common::mesh(&mut random, 12));
        let how = common::pick(&mut random, &[Reduction::Sum, Reduction::Sum, Reduction::Max]);
        let from = common::sharding(&mut random, &sizes, &on, how);
        let to = common::sharding(&mut random, &sizes, &on, how);
        follow(&mut random, &from, &to)?;
    }

    #[test]
    fn routes_lead_to_the_target_on_other_devices(seed: u64) {
        let mut random = Random::new(seed);
        let sizes = common::sizes(&mut random);
        let (a, b) = (common::mesh(&mut random, 8), common::mesh(&mut random, 8));
        let from = common::sharding(&mut random, &sizes, &a, Reduction::Sum);
        let to = common::sharding(&mut random, &sizes, &b, Reduction::Sum);
        follow(&mut random, &from, &to)?;
    }
}
