//! The header in front of every datagram of an association.
//! The mediator's associations read and write it. RFC 1928 §7.
//!
//! We do not reassemble fragments, because no program sends them: "Implementation of fragmentation is optional; an
//! implementation that does not support fragmentation MUST drop any datagram whose FRAG field is other than X'00'."

use super::{Endpoint, EndpointView, Unread, reader::Reader};

/// A datagram between a program and the proxy, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramView<'a> {
    /// 0 for a whole datagram.
    pub fragment: u8,
    /// Where to, or where from; unchecked.
    pub endpoint: EndpointView<'a>,
    /// The octets of the header: an answer from the same endpoint starts with the same ones.
    pub header: &'a [u8],
    /// What is carried.
    pub payload: &'a [u8],
}

impl<'a> DatagramView<'a> {
    /// Reads one datagram. The reserved octets are not looked at.
    ///
    /// # Errors
    /// [`Unread::More`] for a header that is cut, [`super::Refusal::AddressType`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Unread> {
        let mut reader = Reader::new(datagram);
        let [_, _, fragment] = reader.array()?;
        let endpoint = EndpointView::read(&mut reader)?;
        let header = datagram.strip_suffix(reader.rest()).unwrap_or(datagram);
        Ok(Self {
            fragment,
            endpoint,
            header,
            payload: reader.rest(),
        })
    }
}

impl Endpoint {
    /// Appends the header of a whole datagram to or from this endpoint.
    pub fn emit_datagram_header(&self, out: &mut Vec<u8>) {
        out.extend([0, 0, 0]);
        self.emit(out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Target;

    #[test]
    fn the_fragment_number_is_seen() {
        let view = DatagramView::parse(&[0, 0, 7, 1, 192, 0, 2, 1, 0, 53, 9]).expect("parses");
        assert_eq!((view.fragment, view.payload), (7, &[9u8][..]));
    }

    proptest! {
        #[test]
        fn a_datagram_is_read_as_it_was_written(name in "[a-z]{1,63}", port in 1u16.., payload in any::<Vec<u8>>()) {
            let target: Target = format!("{name}:{port}").parse().expect("valid");
            let endpoint = Endpoint::from(target);
            let mut out = Vec::new();
            endpoint.emit_datagram_header(&mut out);
            let header = out.clone();
            out.extend(&payload);
            let view = DatagramView::parse(&out).expect("parses");
            prop_assert_eq!(view.endpoint.endpoint(), Ok(endpoint));
            prop_assert_eq!((view.fragment, view.header, view.payload), (0, &header[..], &payload[..]));
        }

        #[test]
        fn any_datagram_is_read_without_a_panic(octets in any::<Vec<u8>>()) {
            if let Ok(view) = DatagramView::parse(&octets) {
                prop_assert_eq!([view.header, view.payload].concat(), octets);
            }
        }
    }
}
