//! Paths of one to four relays, all in this process: what a user of the overlay sees, whatever carries the first hop.

mod blocked;
mod bound;
mod choosing;
mod crowded;
mod early;
mod failing;
mod forwarding;
mod hostile;
mod isolated;
mod marks;
mod names;
mod packets;
mod padding;
mod policies;
mod private_tokens;
mod region;
mod rest;
mod rough;
mod sharing;
mod support;

/// The whole conformance suite over each length of path.
mod quic {
    mod one {
        hoplite_overlay::conformance_tests!(crate::support::subject(1));
    }
    mod two {
        hoplite_overlay::conformance_tests!(crate::support::subject(2));
    }
    mod four {
        hoplite_overlay::conformance_tests!(crate::support::subject(4));
    }
}

/// The same where UDP does not leave the device.
mod without_udp {
    mod one {
        hoplite_overlay::conformance_tests!(crate::support::subject_without_udp(1));
    }
    mod two {
        hoplite_overlay::conformance_tests!(crate::support::subject_without_udp(2));
    }
}
