//! What is sent arrives, at the hop it was meant for and nowhere else; what was changed, repeated or moved is recognised by nobody.

use super::*;

/// A cell on the way: to or from which hop.
#[derive(Clone, Copy, Debug)]
enum Step {
    Forward(usize),
    Backward(usize),
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (1..=MAX_HOPS).prop_flat_map(|hops| {
        let step = prop_oneof![
            (0..hops).prop_map(Step::Forward),
            (0..hops).prop_map(Step::Backward),
        ];
        (Just(hops), prop::collection::vec(step, 1..40))
    })
}

fn forward_all(circuit: &mut Circuit, count: usize, hops: usize) -> Vec<[u8; BODY]> {
    let cells = 0..count;
    cells
        .map(|number| {
            let mut body = message(number);
            circuit
                .client
                .encrypt_for(number % hops, &mut body)
                .expect("a hop");
            body
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_cell_arrives_at_its_hop_as_it_was_sent((hops, steps) in steps()) {
        let mut circuit = Circuit::of(hops);
        for (number, step) in steps.into_iter().enumerate() {
            let mut body = message(number);
            let (hop, sent, heard) = match step {
                Step::Forward(hop) => {
                    let sent = circuit.client.encrypt_for(hop, &mut body).expect("a hop");
                    (hop, sent, circuit.forward(&mut body))
                }
                Step::Backward(hop) => {
                    let sent = circuit.say(hop, &mut body);
                    (hop, sent, circuit.client.decrypt(&mut body))
                }
            };
            prop_assert_eq!(heard, Some((hop, sent)));
            prop_assert_eq!(without_digest(&body), message(number));
            prop_assert_eq!(&body[5..9], &sent[..4]);
        }
    }

    #[test]
    fn a_tagged_cell_and_all_that_follow_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, bit in 0..BODY * 8, good in 0usize..5, backward: bool,
    ) {
        let mut circuit = Circuit::of(hops);
        for number in 0..good + 3 {
            let mut body = message(number);
            if backward {
                circuit.say(hops - 1, &mut body);
            } else {
                circuit.client.encrypt_for(hops - 1, &mut body).expect("a hop");
            }
            if number == good {
                body[bit / 8] ^= 1 << (bit % 8);
            }
            let heard = if backward { circuit.client.decrypt(&mut body) } else { circuit.forward(&mut body) };
            prop_assert_eq!(heard.is_some(), number < good);
        }
    }

    #[test]
    fn a_replayed_cell_and_all_that_follow_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, good in 1usize..20, which in 0usize..20,
    ) {
        let mut circuit = Circuit::of(hops);
        let cells = forward_all(&mut circuit, good + 2, hops);
        for (number, mut body) in cells.iter().copied().enumerate().take(good) {
            prop_assert_eq!(circuit.forward(&mut body).expect("recognised").0, number % hops);
        }
        let mut again = cells[which % good];
        prop_assert_eq!(circuit.forward(&mut again), None);
        for mut body in cells[good..].iter().copied() {
            prop_assert_eq!(circuit.forward(&mut body), None);
        }
    }

    /// Neither of two cells that changed places, nor what is sent afterwards to the hops that they were for or to hops behind these.
    #[test]
    fn cells_in_another_order_are_recognised_by_nobody(
        hops in 1..=MAX_HOPS, good in 0usize..10, later in 1usize..10, more in 0usize..10,
    ) {
        let mut circuit = Circuit::of(hops);
        let mut cells = forward_all(&mut circuit, good + later + 1 + more, hops);
        cells.swap(good, good + later);
        for (number, mut body) in cells.into_iter().enumerate() {
            let behind = |moved: usize| number > moved && number % hops >= moved % hops;
            let moved = number == good || number == good + later;
            let heard = circuit.forward(&mut body);
            prop_assert_eq!(heard.is_none(), moved || behind(good) || behind(good + later), "{}", number);
        }
    }

    #[test]
    fn a_cell_of_another_circuit_is_recognised_by_nobody(hops in 1..=MAX_HOPS, body: [u8; 32]) {
        let mut circuit = Circuit::of(hops);
        let mut cell = [0; BODY];
        stream(&body).read(&mut cell);
        prop_assert_eq!(circuit.forward(&mut cell), None);
        stream(&body).read(&mut cell);
        prop_assert_eq!(circuit.client.decrypt(&mut cell), None);
    }
}
