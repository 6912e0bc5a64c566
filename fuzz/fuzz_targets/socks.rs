//! Every parser of `wire::socks`, and the acceptor: what is valid is written and read back, and however bytes are cut,
//! the acceptor comes to the same end.
#![no_main]

use hoplite_wire::socks::{
    Acceptor, CredentialsView, DatagramView, GreetingView, Refusal, Reply, Request, RequestView,
    Step,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    messages(bytes);
    assert_eq!(accept(bytes, bytes.len().max(1)), accept(bytes, 1));
});

fn messages(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok((greeting, len)) = GreetingView::parse(bytes) {
        greeting.emit(&mut out);
        assert_eq!(out, bytes[..len]);
    }
    out.clear();
    if let Ok((credentials, len)) = CredentialsView::parse(bytes) {
        credentials.emit(&mut out);
        assert_eq!(out, bytes[..len]);
    }
    if let Ok(request) = RequestView::parse(bytes).map(|(view, _)| view.request()) {
        request.into_iter().for_each(|request| again(&request));
    }
    if let Ok((reply, _)) = Reply::parse(bytes) {
        let mut out = Vec::new();
        reply.emit(&mut out);
        assert_eq!(Reply::parse(&out), Ok((reply, out.len())));
    }
    if let Ok(view) = DatagramView::parse(bytes) {
        assert_eq!([view.header, view.payload].concat(), bytes);
    }
}

fn again(request: &Request) {
    let mut out = Vec::new();
    request.emit(&mut out);
    let (view, len) = RequestView::parse(&out).expect("what was written is read");
    assert_eq!((view.request().as_ref(), len), (Ok(request), out.len()));
}

/// Where a conversation ends, the input being cut every `size` bytes.
fn accept(bytes: &[u8], size: usize) -> Result<Option<Request>, Refusal> {
    let (mut acceptor, mut chunks) = (Acceptor::new(), bytes.chunks(size));
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
