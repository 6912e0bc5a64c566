use proptest::{collection::vec, prelude::*};

use super::{super::DATA, *};

fn data(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn commands_are_those_of_the_specifications() {
    let specified: [(u8, &str); 30] = [
        (1, "BEGIN"),
        (2, "DATA"),
        (3, "END"),
        (4, "CONNECTED"),
        (5, "SENDME"),
        (6, "EXTEND"),
        (7, "EXTENDED"),
        (8, "TRUNCATE"),
        (9, "TRUNCATED"),
        (10, "DROP"),
        (11, "RESOLVE"),
        (12, "RESOLVED"),
        (13, "BEGIN_DIR"),
        (14, "EXTEND2"),
        (15, "EXTENDED2"),
        (19, "CONFLUX_LINK"),
        (20, "CONFLUX_LINKED"),
        (21, "CONFLUX_LINKED_ACK"),
        (22, "CONFLUX_SWITCH"),
        (32, "ESTABLISH_INTRO"),
        (33, "ESTABLISH_RENDEZVOUS"),
        (34, "INTRODUCE1"),
        (35, "INTRODUCE2"),
        (36, "RENDEZVOUS1"),
        (37, "RENDEZVOUS2"),
        (38, "INTRO_ESTABLISHED"),
        (39, "RENDEZVOUS_ESTABLISHED"),
        (40, "INTRODUCE_ACK"),
        (41, "PADDING_NEGOTIATE"),
        (42, "PADDING_NEGOTIATED"),
    ];
    let udp = [(16, "CONNECT_UDP"), (17, "CONNECTED_UDP"), (18, "DATAGRAM")];
    let later = [(43, "XOFF"), (44, "XON")];
    let ours: Vec<_> = RelayCommand::KNOWN
        .iter()
        .map(|(known, name)| (known.0, *name))
        .collect();
    let mut all = [&specified[..], &udp, &later].concat();
    all.sort_unstable();
    assert_eq!(ours, all);
}

#[test]
fn reasons_of_a_streams_end_are_those_of_the_specification() {
    let specified = [
        "MISC",
        "RESOLVEFAILED",
        "CONNECTREFUSED",
        "EXITPOLICY",
        "DESTROY",
        "DONE",
        "TIMEOUT",
        "NOROUTE",
        "HIBERNATING",
        "INTERNAL",
        "RESOURCELIMIT",
        "CONNRESET",
        "TORPROTOCOL",
        "NOTDIRECTORY",
    ];
    assert_eq!(EndReason::KNOWN.len(), specified.len());
    for (number, name) in (1..).zip(specified) {
        assert_eq!(EndReason(number).name(), Some(name));
    }
}

#[test]
fn a_message_stands_in_its_cell_as_specified() {
    let heads: [(Format, &[u8], usize); 2] = [
        (Format::V0, &[2, 0, 0, 1, 2, 0, 0, 0, 0, 0, 5], 498),
        (
            Format::V1,
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 5, 1, 2,
            ],
            488,
        ),
    ];
    for (format, head, most) in heads {
        let mut body = [0xee; BODY];
        let stream = StreamId(0x0102);
        let padding = write(format, &mut body, RelayCommand::DATA, stream, b"hello").unwrap();
        assert_eq!(padding.len(), most - 5 - 4);
        padding.fill(0x99);
        let (found, rest) = body.split_at(head.len());
        assert_eq!(found, head);
        assert_eq!(&rest[..9], b"hello\0\0\0\0");
        assert!(rest[9..].iter().all(|byte| *byte == 0x99));
        // What the encryption sets is not looked at.
        match format {
            Format::V0 => {
                body[DIGEST_AT..DIGEST_AT + 4].fill(0xd1);
                body[RECOGNIZED_AT..RECOGNIZED_AT + 2].fill(7);
            }
            Format::V1 => body[..16].fill(0xd1),
        }
        let header = Header::read(format, &body).unwrap();
        let wanted = Header {
            format,
            command: RelayCommand::DATA,
            stream,
            length: 5,
        };
        assert_eq!(header, wanted);
        assert_eq!(header.data(&body), Ok(&b"hello"[..]));
    }
}

#[test]
fn a_message_of_a_circuit_has_no_stream_in_version_1() {
    let mut body = [0; BODY];
    let data = [&[1, 0, 16][..], &[0xaa; 16]].concat();
    let random = write(
        Format::V1,
        &mut body,
        RelayCommand::SENDME,
        StreamId::CIRCUIT,
        &data,
    );
    assert_eq!(random.unwrap().len(), 490 - 19 - 4);
    assert_eq!(body[16..22], [5, 0, 19, 1, 0, 16]);
    let header = Header::read(Format::V1, &body).unwrap();
    let message = Message::parse(header.command, header.data(&body).unwrap());
    assert_eq!(
        message,
        Ok(Message::Sendme(Sendme::V1(SendmeTag::Cgo([0xaa; 16]))))
    );
}

/// tor-spec "Relay cells", proposal 339, and every command that nobody knows.
#[test]
fn in_version_1_a_command_about_a_stream_names_one_and_another_does_not() {
    let streams = [1, 2, 3, 4, 11, 12, 13, 16, 17, 18, 43, 44];
    for command in (0..=u8::MAX).map(RelayCommand) {
        let wrong = StreamId(u16::from(!streams.contains(&command.0)));
        let right = StreamId(u16::from(streams.contains(&command.0)));
        let mut body = [0x5a; BODY];
        let refused = write(Format::V1, &mut body, command, wrong, &[]);
        assert_eq!(refused, Err(Malformed("stream of a relay message")));
        assert_eq!(body, [0x5a; BODY]);
        write(Format::V1, &mut body, command, right, &[]).unwrap();
        assert_eq!(Header::read(Format::V1, &body).unwrap().stream, right);
        body[19..21].fill(0);
        assert_eq!(Header::read(Format::V1, &body).is_err(), right.0 == 1);
        // Version 0 leaves it to who understands the command.
        for stream in [0, 1].map(StreamId) {
            write(Format::V0, &mut body, command, stream, &[]).unwrap();
            assert_eq!(Header::read(Format::V0, &body).unwrap().stream, stream);
        }
    }
}

#[test]
fn a_full_message_leaves_no_padding_and_one_byte_more_is_refused() {
    for (format, command, stream, most) in [
        (Format::V0, RelayCommand::DATA, StreamId(1), DATA),
        (Format::V0, RelayCommand::EXTEND2, StreamId::CIRCUIT, DATA),
        (Format::V1, RelayCommand::DATA, StreamId(1), 488),
        (Format::V1, RelayCommand::EXTEND2, StreamId::CIRCUIT, 490),
    ] {
        let mut body = [0; BODY];
        for bytes in most - 5..=most {
            let random = write(format, &mut body, command, stream, &[7; DATA][..bytes]);
            assert_eq!(random.unwrap().len(), usize::from(bytes == most - 5));
            let header = Header::read(format, &body).unwrap();
            assert_eq!(header.data(&body).unwrap().len(), bytes);
        }
        let before = body;
        let refused = write(format, &mut body, command, stream, &[7; DATA + 1][..=most]);
        assert_eq!(refused, Err(Malformed("length of a relay message")));
        assert_eq!(body, before);
    }
}

#[test]
fn a_length_beyond_the_cell_is_malformed() {
    for (format, at, command, most) in [
        (Format::V0, 9, RelayCommand::DATA, 498),
        (Format::V1, 17, RelayCommand::DATA, 488),
        (Format::V1, 17, RelayCommand::EXTENDED2, 490),
    ] {
        let mut body = [1; BODY];
        body[at - 1 - 8 * usize::from(format == Format::V0)] = command.0;
        for (length, fits) in [(most, true), (most + 1, false), (65_535, false)] {
            body[at..at + 2].copy_from_slice(&u16::to_be_bytes(length));
            let header = Header::read(format, &body).unwrap();
            assert_eq!(header.data(&body).is_ok(), fits, "{length}");
        }
    }
}

#[test]
fn begin_is_a_target_in_lower_case_a_zero_and_flags() {
    let begin = |target: &str, flags| Begin {
        target: target.parse().unwrap(),
        flags,
    };
    let both = Flags::IPV6_OKAY.and(Flags::IPV6_PREFERRED);
    let bytes = b"www.example.com:80\0\0\0\0\x05";
    let wanted = begin("www.example.com:80", both);
    assert_eq!(Begin::parse(bytes).as_ref(), Ok(&wanted));
    assert_eq!(data(|out| wanted.write(out)), bytes);
    assert!(both.has(Flags::IPV6_OKAY) && !both.has(Flags::IPV4_NOT_OKAY));
    let parsed = Begin::parse(b"[2001:DB8::1]:443\0\0\0\0\x02").unwrap();
    assert_eq!(parsed, begin("[2001:db8::1]:443", Flags::IPV4_NOT_OKAY));
    let parsed = Begin::parse(b"WWW.Example.COM:80\0");
    assert_eq!(parsed, Ok(begin("www.example.com:80", Flags(0))));
    let parsed = Begin::parse(b"192.0.2.1:9\0\0\0");
    assert_eq!(parsed, Ok(begin("192.0.2.1:9", Flags(0))));
    for bad in [
        &b"www.example.com:80"[..],
        b"www.example.com\0",
        b"www.example.com:0\0",
        b"www.example.com:65536\0",
        b":80\0",
        b"a b:80\0",
        b"\xff:80\0",
        b"",
    ] {
        assert_eq!(Begin::parse(bad), Err(Malformed("BEGIN")), "{bad:?}");
    }
}

#[test]
fn connected_is_either_address_with_its_time_or_nothing() {
    let v4: IpAddr = [192, 0, 2, 1].into();
    let bytes = [192, 0, 2, 1, 0, 0, 0x0e, 0x10];
    assert_eq!(Connected::parse(&bytes), Ok(Connected(Some((v4, 3600)))));
    assert_eq!(data(|out| Connected(Some((v4, 3600))).write(out)), bytes);
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    let bytes = [
        &[0, 0, 0, 0, 6, 0x20, 1, 0xd, 0xb8][..],
        &[0; 11],
        &[1, 0, 0, 0, 60],
    ]
    .concat();
    assert_eq!(Connected::parse(&bytes), Ok(Connected(Some((v6, 60)))));
    assert_eq!(data(|out| Connected(Some((v6, 60))).write(out)), bytes);
    for none in [&[][..], &[0; 8], &[0; 498]] {
        assert_eq!(Connected::parse(none), Ok(Connected(None)));
    }
    assert_eq!(data(|out| Connected(None).write(out)), []);
    let mut other = bytes.clone();
    other[4] = 7;
    for bad in [&[1, 2, 3][..], &other, &bytes[..20]] {
        assert!(Connected::parse(bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        format!("{:?}", Connected(Some((v4, 1)))),
        "Connected(hidden)"
    );
}

#[test]
fn an_end_is_a_reason_and_for_the_policy_an_address() {
    assert_eq!(End::parse(&[]), End::new(EndReason::MISC));
    assert_eq!(End::parse(&[6, 1, 2, 3, 4]), End::new(EndReason::DONE));
    assert_eq!(End::parse(&[99]).reason, EndReason(99));
    let v4 = Some(([192, 0, 2, 1].into(), 5));
    assert_eq!(End::parse(&[4, 192, 0, 2, 1, 0, 0, 0, 5]).address, v4);
    let forever = End::parse(&[4, 192, 0, 2, 1]).address.unwrap();
    assert_eq!(forever.1, u32::MAX);
    let v6 = End::parse(&[4; 17]).address.unwrap();
    assert_eq!(v6, ([4; 16].into(), u32::MAX));
    for wrong in [&[4, 1, 2][..], &[4; 7], &[4; 30]] {
        assert_eq!(End::parse(wrong), End::new(EndReason::EXITPOLICY));
    }
    let end = End {
        reason: EndReason::EXITPOLICY,
        address: v4,
    };
    assert_eq!(data(|out| end.write(out)), [4, 192, 0, 2, 1, 0, 0, 0, 5]);
    assert_eq!(data(|out| End::new(EndReason::DONE).write(out)), [6]);
    assert_eq!(format!("{end:?}"), "End(EXITPOLICY)");
}

#[test]
fn a_sendme_proves_what_was_seen_or_proves_nothing() {
    let bytes = [&[1, 0, 20][..], &[0xd1; 20]].concat();
    let right = Sendme::V1(SendmeTag::Tor1([0xd1; 20]));
    assert_eq!(Sendme::parse(&bytes), Ok(right));
    assert_eq!(data(|out| right.write(out)), bytes);
    let tag = [&[1, 0, 16][..], &[0xd1; 16]].concat();
    let by_tag = Sendme::V1(SendmeTag::Cgo([0xd1; 16]));
    assert_eq!(Sendme::parse(&tag), Ok(by_tag));
    assert_eq!(data(|out| by_tag.write(out)), tag);
    assert_eq!(data(|out| Sendme::V0.write(out)), []);
    for none in [&[][..], &[0], &[0, 1, 2, 3]] {
        assert_eq!(Sendme::parse(none), Ok(Sendme::V0));
    }
    let longer = [&[1, 0, 32][..], &[0xd1; 20], &[0xee; 12]].concat();
    assert_eq!(Sendme::parse(&longer), Ok(right));
    let short = [&[1, 0, 19][..], &[0xd1; 20]].concat();
    for bad in [
        &short[..],
        &bytes[..22],
        &tag[..18],
        &[1, 0, 0],
        &[2, 0, 0],
        &[1],
    ] {
        assert_eq!(Sendme::parse(bad), Err(Malformed("SENDME")));
    }
}

#[test]
fn xon_has_a_rate_and_xoff_has_none() {
    let xon = Xon { kbps: 0x0102_0304 };
    assert_eq!(data(|out| xon.write(out)), [0, 1, 2, 3, 4]);
    assert_eq!(Xon::parse(&[0, 1, 2, 3, 4]), Ok(xon));
    assert_eq!(data(|out| Xoff.write(out)), [0]);
    assert_eq!(Xoff::parse(&[0]), Ok(Xoff));
    for bad in [&[][..], &[1, 0, 0, 0, 0], &[0, 0, 0, 0]] {
        assert_eq!(Xon::parse(bad), Err(Malformed("XON")), "{bad:?}");
    }
    assert!(Xoff::parse(&[1]).is_err() && Xoff::parse(&[]).is_err());
}

#[test]
fn a_name_is_asked_for_with_a_zero_behind_it() {
    assert_eq!(
        Resolve::parse(b"www.example.com\0rest"),
        Ok(Resolve("www.example.com"))
    );
    assert_eq!(data(|out| Resolve("a.example").write(out)), b"a.example\0");
    let long = [&[b'a'; 256][..], b"\0"].concat();
    for bad in [&b"a.example"[..], b"\0", b"", b"\xff\0", &long] {
        assert_eq!(Resolve::parse(bad), Err(Malformed("RESOLVE")));
    }
    assert_eq!(format!("{:?}", Resolve("a.example")), "Resolve(hidden)");
}

#[test]
fn answers_are_type_length_value_and_time() {
    let bytes = [
        &[4, 4, 192, 0, 2, 1, 0, 0, 0, 60][..],
        &[6, 16, 0x20, 1, 0xd, 0xb8],
        &[0; 11],
        &[1, 0, 0, 0, 61],
        b"\x00\x09a.example\x00\x00\x00\x3e",
        &[4, 3, 1, 2, 3, 0, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0],
    ]
    .concat();
    let resolved = Resolved::parse(&bytes).unwrap();
    let answers: Vec<_> = resolved
        .0
        .iter()
        .map(|one| (one.value, one.seconds))
        .collect();
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    let wanted = [
        (Value::Ip([192, 0, 2, 1].into()), 60),
        (Value::Ip(v6), 61),
        (Value::Name(b"a.example"), 62),
        (
            Value::Unknown {
                kind: 4,
                value: &[1, 2, 3],
            },
            0,
        ),
        (
            Value::Unknown {
                kind: 9,
                value: &[],
            },
            0,
        ),
    ];
    assert_eq!(answers, wanted);
    assert_eq!(data(|out| resolved.write(out)), bytes);
    assert!(!format!("{resolved:?}").contains("192"));
}

#[test]
fn an_error_is_the_only_answer() {
    let answer = |value| Answer { value, seconds: 7 };
    let transient = data(|out| Resolved(vec![answer(Value::Transient)]).write(out));
    assert_eq!(transient[..2], [0xf0, 24]);
    assert_eq!(&transient[2..26], b"Error resolving hostname");
    assert_eq!(transient[26..], [0, 0, 0, 7]);
    let parsed = Resolved::parse(&transient).unwrap();
    assert!(parsed.0[0].is_error());
    let permanent = Resolved::parse(&[0xf1, 1, 9, 0, 0, 0, 7]);
    assert_eq!(permanent, Ok(Resolved(vec![answer(Value::Permanent)])));
    let both = [&transient[..], &[4, 4, 1, 2, 3, 4, 0, 0, 0, 1]].concat();
    for bad in [&both[..], &transient[..29], &[4, 5, 1, 2, 3, 4]] {
        assert_eq!(Resolved::parse(bad), Err(Malformed("RESOLVED")));
    }
}

#[test]
fn messages_without_a_body_ignore_what_stands_there() {
    for (command, wanted) in [
        (RelayCommand::BEGIN_DIR, Message::BeginDir),
        (RelayCommand::TRUNCATE, Message::Truncate),
        (RelayCommand::DROP, Message::Drop),
    ] {
        let parsed = Message::parse(command, b"anything").unwrap();
        assert_eq!(parsed, wanted);
        assert_eq!(
            (parsed.command(), data(|out| parsed.write(out))),
            (command, vec![])
        );
    }
}

/// A whole message in a cell of either format, and back.
fn there_and_back(message: &Message<'_>) -> Result<(), TestCaseError> {
    let bytes = data(|out| message.write(out));
    let command = message.command();
    let about_stream = Format::V1.header(command) > Format::V1.header(RelayCommand::EXTEND2);
    let stream = StreamId(9 * u16::from(about_stream));
    for format in [Format::V0, Format::V1] {
        let mut body = [0x5a; BODY];
        let written = write(format, &mut body, command, stream, &bytes).is_ok();
        prop_assert_eq!(written, bytes.len() <= format.most(command));
        if !written {
            continue;
        }
        let header = Header::read(format, &body).unwrap();
        let parsed = Message::parse(header.command, header.data(&body).unwrap());
        prop_assert_eq!(parsed.as_ref(), Ok(message));
    }
    Ok(())
}

proptest! {
    #[test]
    fn headers_are_read_back(command: u8, stream: u16, length in 0_u16..=488, version_1: bool) {
        let format = if version_1 { Format::V1 } else { Format::V0 };
        let header = Header { format, command: RelayCommand(command), stream: StreamId(stream), length };
        let mut body = [0x5a; BODY];
        if header.write(&mut body).is_ok() {
            prop_assert_eq!(Header::read(format, &body), Ok(header));
        }
        prop_assert!(body[header.len()..].iter().all(|byte| *byte == 0x5a));
    }

    #[test]
    fn messages_of_streams_are_read_back(name in "[a-z][a-z0-9_-]{0,20}(\\.[a-z]{1,9}){0,3}", port in 1_u16.., flags: u32, v4 in 1_u32.., v6: u128, seconds: u32, bytes in vec(any::<u8>(), 0..=DATA)) {
        let target: Target = format!("{name}:{port}").parse().unwrap();
        there_and_back(&Message::Begin(Begin { target, flags: Flags(flags) }))?;
        there_and_back(&Message::Data(&bytes))?;
        there_and_back(&Message::Resolve(Resolve(&name)))?;
        let v4 = IpAddr::from(v4.to_be_bytes());
        let v6 = IpAddr::from((v6 | 1).to_be_bytes());
        for address in [v4, v6] {
            there_and_back(&Message::Connected(Connected(Some((address, seconds)))))?;
            let reason = EndReason::EXITPOLICY;
            there_and_back(&Message::End(End { reason, address: Some((address, seconds)) }))?;
        }
        let values = [Value::Ip(v4), Value::Ip(v6), Value::Name(name.as_bytes())];
        let answers = values.map(|value| Answer { value, seconds });
        there_and_back(&Message::Resolved(Resolved(answers.to_vec())))?;
    }

    #[test]
    fn messages_of_circuits_are_read_back(reason: u8, digest: [u8; 20], kbps: u32, identity: [u8; 32], bytes in vec(any::<u8>(), 0..400)) {
        there_and_back(&Message::End(End::new(EndReason(reason))))?;
        there_and_back(&Message::Truncated(super::super::circuit::DestroyReason(reason)))?;
        there_and_back(&Message::Sendme(Sendme::V1(SendmeTag::Tor1(digest))))?;
        there_and_back(&Message::Sendme(Sendme::V1(SendmeTag::Cgo(*digest.first_chunk().unwrap()))))?;
        there_and_back(&Message::Sendme(Sendme::V0))?;
        there_and_back(&Message::Xon(Xon { kbps }))?;
        there_and_back(&Message::Xoff(Xoff))?;
        there_and_back(&Message::Extended2(Extended2 { data: &bytes }))?;
        let specifiers = vec![LinkSpecifier::Ed25519(identity), LinkSpecifier::Rsa(digest)];
        let create = Create2 { handshake: crate::cell::circuit::HandshakeType::NTOR_V3, data: &bytes };
        there_and_back(&Message::Extend2(Extend2 { specifiers, create }))?;
        there_and_back(&Message::Unknown(RelayCommand::INTRODUCE1, &bytes))?;
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(command: u8, bytes: Vec<u8>) {
        drop(Message::parse(RelayCommand(command), &bytes));
        drop(Message::parse(RelayCommand(command % 45), &bytes));
    }
}
