//! ECN-DSCP-Context-ID: whatever either end says, an agreed id stands for one mark, and what we send is understood.
#![no_main]

use hoplite_wire::{
    RequestHead, ResponseHead,
    ecn_contexts::{FIELD, head},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    let request = RequestHead::connect_udp("relay", "/").with(FIELD, value);
    let response = ResponseHead::new(200).with(FIELD, value);
    for agreed in [request.ecn_contexts(), response.ecn_contexts()] {
        let Some(agreed) = agreed else { continue };
        for code_point in 0..4 {
            let [id] = head(Some(&agreed), Some(code_point));
            assert_eq!(agreed.code_point(id.into()), Some(code_point));
        }
    }
});
