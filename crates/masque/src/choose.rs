//! Which relays make a path, when the user gives only a number of hops. Used by the client when it starts and when a path failed.
//! The rules are those of RFC 9614 (partitioning): no relay and no operator stands twice on a path.

/// What choosing needs to know of a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// It forwards to other relays, so it may stand before the last hop.
    pub ingress: bool,
    /// It connects to targets, so it may be the last hop.
    pub egress: bool,
    /// Who runs it; relays of unknown operators count as run by different people.
    pub operator: Option<String>,
    /// Where it stands; only the last hop's matters.
    pub region: Option<String>,
}

/// What is asked of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The number of hops, 1..=4.
    pub hops: usize,
    /// The last relay's region, if it matters.
    pub region: Option<String>,
    /// The first relay, if it is given: a path that keeps its entry shows the user to fewer operators.
    pub entry: Option<usize>,
    /// Relays that failed lately: taken only if there is no other way.
    pub avoid: Vec<usize>,
}

/// Indices of the relays of a path, first hop first; `None` if the candidates do not allow one.
/// `random(n)` gives a number below `n`.
pub fn choose(
    candidates: &[Candidate],
    wish: &Wish,
    random: &mut dyn FnMut(usize) -> usize,
) -> Option<Vec<usize>> {
    let all = shuffled(candidates.len(), random);
    let (fine, failed): (Vec<_>, Vec<_>) = all.into_iter().partition(|i| !wish.avoid.contains(i));
    let order: Vec<usize> = fine.into_iter().chain(failed).collect();
    let mut path = Vec::with_capacity(wish.hops);
    extend(candidates, wish, &order, &mut path).then_some(path)
}

fn shuffled(n: usize, random: &mut dyn FnMut(usize) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random(i + 1).min(i));
    }
    order
}

/// Depth-first: a path has at most four hops, so this ends soon.
fn extend(candidates: &[Candidate], wish: &Wish, order: &[usize], path: &mut Vec<usize>) -> bool {
    if path.len() == wish.hops {
        return !path.is_empty();
    }
    for &next in order {
        if !fits(candidates, wish, path, next) {
            continue;
        }
        path.push(next);
        if extend(candidates, wish, order, path) {
            return true;
        }
        path.pop();
    }
    false
}

fn fits(candidates: &[Candidate], wish: &Wish, path: &[usize], next: usize) -> bool {
    let Some(relay) = candidates.get(next) else {
        return false;
    };
    let last = path.len() + 1 == wish.hops;
    let role = if last { relay.egress } else { relay.ingress };
    let entry = !path.is_empty() || wish.entry.is_none_or(|entry| entry == next);
    let region = !last || wish.region.is_none() || wish.region == relay.region;
    role && entry
        && region
        && !path
            .iter()
            .any(|&i| i == next || same_operator(candidates, i, next))
}

fn same_operator(candidates: &[Candidate], a: usize, b: usize) -> bool {
    let operator = |i: usize| candidates.get(i).and_then(|c| c.operator.as_deref());
    operator(a).is_some() && operator(a) == operator(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn relay(ingress: bool, egress: bool, operator: &str) -> Candidate {
        Candidate {
            ingress,
            egress,
            operator: Some(operator.into()),
            region: None,
        }
    }

    fn first(n: usize) -> usize {
        n - 1
    }

    #[test]
    fn a_failed_relay_is_avoided_while_there_is_another() {
        let relays = [
            relay(true, true, "a"),
            relay(true, true, "b"),
            relay(true, true, "c"),
        ];
        let wish = Wish {
            hops: 2,
            avoid: vec![1],
            ..Wish::default()
        };
        let path = choose(&relays, &wish, &mut first).expect("two are left");
        assert!(!path.contains(&1));
        let wish = Wish {
            hops: 3,
            avoid: vec![1],
            ..Wish::default()
        };
        assert!(
            choose(&relays, &wish, &mut first)
                .expect("all are needed")
                .contains(&1)
        );
    }

    #[test]
    fn one_operator_never_stands_twice_on_a_path() {
        let relays = [relay(true, true, "a"), relay(true, true, "a")];
        let wish = Wish {
            hops: 2,
            ..Wish::default()
        };
        assert_eq!(choose(&relays, &wish, &mut first), None);
    }

    proptest! {
        #[test]
        fn every_path_keeps_the_rules(
            raw in prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4), 0..8),
            hops in 1usize..5,
            seed in any::<usize>(),
        ) {
            let relays: Vec<_> = raw.iter().map(|(i, e, o)| relay(*i, *e, &o.to_string())).collect();
            let wish = Wish { hops, ..Wish::default() };
            if let Some(path) = choose(&relays, &wish, &mut |n| seed % n) {
                prop_assert_eq!(path.len(), hops);
                prop_assert!(relays[path[hops - 1]].egress);
                prop_assert!(path[..hops - 1].iter().all(|&i| relays[i].ingress));
                let mut operators: Vec<_> = path.iter().map(|&i| relays[i].operator.clone()).collect();
                operators.sort();
                operators.dedup();
                prop_assert_eq!(operators.len(), hops);
            }
        }
    }
}
