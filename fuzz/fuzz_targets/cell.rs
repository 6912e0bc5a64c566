//! Cells: however bytes are cut, the reader comes to the same end, nothing is lost, and no body of the link handshake or of a circuit makes it panic.
#![no_main]

use bytes::BytesMut;
use hoplite_wire::cell::{
    Cell, Command, Malformed, Reader,
    circuit::{
        ClientExtensions, Create2, CreateFast, Created2, CreatedFast, DestroyReason,
        ServerExtensions,
    },
    handshake::{AuthChallenge, Authenticate, Certs, Ed25519Authentication, Netinfo, Versions},
    padding::PaddingNegotiate,
};
use libfuzzer_sys::fuzz_target;

const LARGEST: usize = 1000;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len());
    assert_eq!(whole, read(bytes, 7));
    let (cells, error, total) = whole;
    assert!(if error.is_some() {
        total <= bytes.len()
    } else {
        total == bytes.len()
    });
    cells.iter().for_each(bodies);
});

/// The cells, the error, and how many bytes were cells or the beginning of one.
fn read(bytes: &[u8], size: usize) -> (Vec<Cell>, Option<Malformed>, usize) {
    let (mut reader, mut cells, mut total) = (Reader::new(LARGEST), Vec::new(), 0);
    for chunk in bytes.chunks(size.max(1)) {
        reader.push(BytesMut::from(chunk));
        loop {
            match reader.next() {
                Ok(Some(cell)) => {
                    total += reader.head().len() + cell.body.len();
                    cells.push(cell);
                }
                Ok(None) => break,
                Err(error) => return (cells, Some(error), total),
            }
        }
    }
    let pending = reader.pending();
    (cells, None, total + pending)
}

fn bodies(cell: &Cell) {
    let body = &cell.body[..];
    match cell.command {
        Command::VERSIONS => again(
            Versions::parse(body),
            |v, out| v.write(out),
            Versions::parse,
        ),
        Command::CERTS => {
            if let Ok(certs) = Certs::parse(body) {
                let mut out = Vec::new();
                certs.write(&mut out);
                assert_eq!(Certs::parse(&out), Ok(certs));
            }
        }
        Command::AUTH_CHALLENGE => {
            again(
                AuthChallenge::parse(body),
                |c, out| c.write(out),
                AuthChallenge::parse,
            );
        }
        Command::AUTHENTICATE => {
            if let Ok(authenticate) = Authenticate::parse(body) {
                drop(Ed25519Authentication::parse(authenticate.authentication));
            }
        }
        Command::PADDING_NEGOTIATE => again(
            PaddingNegotiate::parse(body),
            |p, out| p.write(out),
            PaddingNegotiate::parse,
        ),
        // Of addresses there may be more than are written.
        Command::NETINFO => drop(Netinfo::parse(body)),
        Command::CREATE2 => drop(Create2::parse(body).map(|create| {
            again(
                ClientExtensions::parse(create.data),
                |e, out| e.write(out),
                ClientExtensions::parse,
            );
        })),
        Command::CREATED2 => drop(Created2::parse(body).map(|created| {
            again(
                ServerExtensions::parse(created.data),
                |e, out| e.write(out),
                ServerExtensions::parse,
            );
        })),
        Command::CREATE_FAST => again(
            CreateFast::parse(body),
            |c, out| c.write(out),
            CreateFast::parse,
        ),
        Command::CREATED_FAST => again(
            CreatedFast::parse(body),
            |c, out| c.write(out),
            CreatedFast::parse,
        ),
        Command::DESTROY => again(
            DestroyReason::parse(body),
            |r, out| r.write(out),
            DestroyReason::parse,
        ),
        _ => {}
    }
}

/// What was read is read again from what it writes.
fn again<T: PartialEq + std::fmt::Debug>(
    parsed: Result<T, Malformed>,
    write: impl Fn(&T, &mut Vec<u8>),
    parse: impl Fn(&[u8]) -> Result<T, Malformed>,
) {
    if let Ok(value) = parsed {
        let mut out = Vec::new();
        write(&value, &mut out);
        assert_eq!(parse(&out), Ok(value));
    }
}
