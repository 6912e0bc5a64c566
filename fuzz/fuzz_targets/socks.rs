//! Every parser of `wire::socks`, and the acceptor: what is valid is written and read back, and however octets are cut,
//! the acceptor comes to the same end.
#![no_main]

use hoplite_wire::socks::{
    Acceptor, CredentialsView, DatagramView, GreetingView, Refusal, Reply, Request, RequestView, Step,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    messages(octets);
    assert_eq!(accept(octets, octets.len().max(1)), accept(octets, 1));
});

fn messages(octets: &[u8]) {
    let mut out = Vec::new();
    if let Ok((greeting, len)) = GreetingView::parse(octets) {
        greeting.emit(&mut out);
        assert_eq!(out, octets[..len]);
    }
    out.clear();
    if let Ok((credentials, len)) = CredentialsView::parse(octets) {
        credentials.emit(&mut out);
        assert_eq!(out, octets[..len]);
    }
    if let Ok(request) = RequestView::parse(octets).map(|(view, _)| view.request()) {
        request.into_iter().for_each(|request| again(&request));
    }
    if let Ok((reply, _)) = Reply::parse(octets) {
        let mut out = Vec::new();
        reply.emit(&mut out);
        assert_eq!(Reply::parse(&out), Ok((reply, out.len())));
    }
    if let Ok(view) = DatagramView::parse(octets) {
        assert_eq!([view.header, view.payload].concat(), octets);
    }
}

fn again(request: &Request) {
    let mut out = Vec::new();
    request.emit(&mut out);
    let (view, len) = RequestView::parse(&out).expect("what was written is read");
    assert_eq!((view.request().as_ref(), len), (Ok(request), out.len()));
}

/// Where a conversation ends, the input being cut every `size` octets.
fn accept(octets: &[u8], size: usize) -> Result<Option<Request>, Refusal> {
    let (mut acceptor, mut chunks) = (Acceptor::new(), octets.chunks(size));
    loop {
        match acceptor.step()? {
            Step::Write(_) => {}
            Step::Request(request) => return Ok(Some(request)),
            Step::Read => match chunks.next() {
                Some(chunk) => acceptor.handle_input(chunk),
                None => return Ok(None),
            },
        }
    }
}
