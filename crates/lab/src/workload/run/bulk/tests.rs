//! Transfers over loopback.

use super::*;

fn choice(weight: f64) -> Choice {
    Choice {
        sendsize: 1,
        recvsize: 1,
        pause: Duration::ZERO,
        weight,
    }
}

#[test]
fn rows_are_drawn_in_proportion_to_their_weights() {
    let choices = [
        choice(12.0),
        choice(0.0),
        choice(2.0),
        choice(f64::NAN),
        choice(1.0),
    ];
    let row = |share| draw(&choices, share).unwrap().0;
    assert_eq!(
        [row(0.0), row(0.79), row(0.81), row(0.93), row(0.94)],
        [1, 1, 3, 3, 5]
    );
}
