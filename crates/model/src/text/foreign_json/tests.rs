#![allow(clippy::unwrap_used)]
use crate::text::foreign_json::*;
use proptest::prelude::*;
use serde_json::json;

/// Reads with the incremental reader, in pieces of `size` bytes.
fn in_pieces(bytes: &[u8], size: usize, mut reader: Reader) -> Document {
    bytes.chunks(size.max(1)).for_each(|piece| reader.push(piece));
    reader.finish()
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// Pieces that form much of JSON's grammar, and many violations of it.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"{"[..],
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\"a\"",
        b"\"a\":",
        b"1",
        b"-",
        b"1e999",
        b"1.5e-3",
        b"00",
        b"true",
        b"null",
        b"NaN",
        b" ",
        b"\0",
        b"\n",
        b"\\",
        b"\\u",
        b"\"\\ud83d\"",
        b"\"\\ude00\\ud83d\\ude00\"",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xf0\x9f\x98\x80",
        b"x",
        b"\"\xe9\"",
        b"{}",
        b"[1,2]",
        b"\"t\x01\"",
    ]);
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn valid_json_reads_as_serde_json_reads_it(value in value(), size in 1..40_usize,
        pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) }
            else { serde_json::to_string(&value) }.unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        for reader in [Reader::whole(), Reader::long()] {
            let document = in_pieces(text.as_bytes(), size, reader);
            prop_assert_eq!(&document,
                &Document { value: expected.clone(), ..Document::default() });
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop_oneof![pieces(), prop::collection::vec(any::<u8>(), 0..80)],
        size in 1..20_usize) {
        let once = in_pieces(&bytes, usize::MAX, Reader::whole());
        prop_assert_eq!(&in_pieces(&bytes, size, Reader::whole()), &once);
        prop_assert_eq!(&in_pieces(&bytes, size, Reader::long()), &once);
        // Both readers agree on valid JSON.
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => prop_assert_eq!(&once, &Document { value, ..Document::default() }),
            Err(_) => prop_assert!(once.fault().is_some(), "{:?}", once),
        }
        // The result can be written and read again.
        let again: Value = serde_json::from_str(&once.value.to_string()).unwrap();
        prop_assert_eq!(again, once.value);
    }

    #[test]
    fn a_prefix_of_json_is_cut_off(
        value in value().prop_filter("a container", |v| v.is_object() || v.is_array()),
        at in any::<prop::sample::Index>()) {
        let text = value.to_string();
        let end = at.index(text.len());
        prop_assert_eq!(read(&text.as_bytes()[..end]).damage, Some(Damage::CutOff));
    }
}

#[test]
fn input_that_javascript_accepts_is_repaired() {
    let deep = format!("{{\"a\":{}{},\"b\":1}}", "[".repeat(200), "]".repeat(200));
    for (bytes, repair, pointer, expected) in [
        (&br#"{"a":"x \ud83d y"}"#[..], Repair::LoneSurrogate, "/a", json!("x \u{fffd} y")),
        (br#"{"a":"\ude00"}"#, Repair::LoneSurrogate, "/a", json!("\u{fffd}")),
        (
            br#"{"a":"\ud83d\ud83d\ude00\ud83d"}"#,
            Repair::LoneSurrogate,
            "/a",
            json!("\u{fffd}\u{1f600}\u{fffd}"),
        ),
        (br#"{"\ud83d":1}"#, Repair::LoneSurrogate, "/\u{fffd}", json!(1)),
        (b"{\"a\":\"caf\xe9\"}", Repair::NotUtf8, "/a", json!("caf\u{fffd}")),
        (b"{\"a\":\"\xf0\x9f\"}", Repair::NotUtf8, "/a", json!("\u{fffd}")),
        (b"\xef\xbb\xbf{\"a\":1}", Repair::ByteOrderMark, "/a", json!(1)),
        (br#"{"a":1e999,"b":1}"#, Repair::NumberOutOfRange, "/b", json!(1)),
        (br#"{"a":-1E+999}"#, Repair::NumberOutOfRange, "/a", json!(null)),
        (br#"{"a":1e99999999999999999999999}"#, Repair::NumberOutOfRange, "/a", json!(null)),
        (br#"{"a":NaN,"b":-Infinity}"#, Repair::NumberOutOfRange, "/b", json!(null)),
        (deep.as_bytes(), Repair::TooDeep, "/b", json!(1)),
        (b"{\"a\":\"tab\there\"}", Repair::ControlCharacter, "/a", json!("tab\there")),
        (b"{\"a\":1}\0\0 ", Repair::ControlCharacter, "/a", json!(1)),
    ] {
        let document = read(bytes);
        assert_eq!((document.damage, &document.repairs[..]), (None, &[repair][..]), "{document:?}");
        assert_eq!(document.value.pointer(pointer), Some(&expected), "{document:?}");
    }
}

#[test]
fn duplicate_keys_keep_the_last_value() {
    assert_eq!(read(br#"{"a":1,"a":2,"b":1e999}"#).value["a"], 2);
}

#[test]
fn damaged_input_keeps_the_values_before_the_fault() {
    for (bytes, damage, value) in [
        (&br#"{"a":{"b":"x","c":"yyy"#[..], Damage::CutOff, json!({"a": {"b": "x"}})),
        (br#"{"a":[1,2,34"#, Damage::CutOff, json!({"a": [1, 2]})),
        (br#"{"a":1,"b":tru}"#, Damage::Garbled { at: 14 }, json!({"a": 1})),
        (br#"{"a":1}{"b":2}"#, Damage::Garbled { at: 7 }, json!({"a": 1})),
        (br#"{"a":1,}"#, Damage::Garbled { at: 7 }, json!({"a": 1})),
        (br#"{"a":01}"#, Damage::Garbled { at: 7 }, json!({})),
        (br#"{"a":1,"b":"\x"}"#, Damage::Garbled { at: 13 }, json!({"a": 1})),
        (b"", Damage::CutOff, json!(null)),
        (b"not JSON", Damage::Garbled { at: 3 }, json!(null)),
    ] {
        let document = read(bytes);
        assert_eq!(
            (document.damage, &document.value),
            (Some(damage), &value),
            "{}",
            String::from_utf8_lossy(bytes)
        );
        assert_eq!(whole(bytes), Err(damage));
    }
}

/// Reading, closing and dropping such a value must not recurse.
#[test]
fn a_million_levels_overflow_no_stack() {
    for text in ["[".repeat(1_000_000), "{\"a\":".repeat(1_000_000)] {
        let document = read(text.as_bytes());
        assert_eq!(
            (document.damage, &document.repairs[..]),
            (Some(Damage::CutOff), &[Repair::TooDeep][..])
        );
    }
    let closed = ["[".repeat(1_000_000), "]".repeat(1_000_000)].concat();
    assert_eq!(read(closed.as_bytes()).damage, None);
}

/// An agent may print brackets without end; memory must stay bounded.
#[test]
fn levels_beyond_the_limit_are_too_large() {
    for (open, mut reader) in
        [("[", Reader::long()), ("{\"a\":", Reader::long()), ("[", Reader::whole())]
    {
        reader.push(br#"{"type":"user","b":"#);
        let piece = open.repeat(1024 * 1024);
        (0..3).for_each(|_| reader.push(piece.as_bytes()));
        let document = reader.finish();
        assert_eq!(document.damage, Some(Damage::TooLarge), "{open}");
        assert_eq!(document.value["type"], "user");
    }
}

#[test]
fn skipped_container_becomes_null() {
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let kept = |levels: usize| (0..levels).fold(Value::Null, |inner, _| json!([inner]));
    let text =
        format!(r#"{{"a":{},"b":[{},2,{{"c":{}}}],"d":4}}"#, deep(300), deep(126), deep(200));
    let document = read(text.as_bytes());
    assert_eq!((document.damage, &document.repairs[..]), (None, &[Repair::TooDeep][..]));
    assert_eq!(
        document.value,
        json!({"a": kept(126), "b": [kept(125), 2, {"c": kept(124)}], "d": 4})
    );
}

#[test]
fn shortened_document_keeps_members_and_ends_of_texts() {
    let image = "A".repeat(5_000_000);
    let text = format!("begin{}end", "é".repeat(1_000_000));
    let numbers = vec![1; 2_000_000];
    let objects = vec![json!({"a": {"b": "c"}}); 200_000];
    let line = json!({"images": [&image, &image, &image], "numbers": numbers, "objects": objects,
        "text": text, "result": {"type": "result", "is_error": true, "id": "x"}});
    let bytes = serde_json::to_vec(&line).unwrap();
    let document = in_pieces(&bytes, 64 * 1024, Reader::long());
    assert_eq!((document.damage, &document.repairs[..]), (None, &[Repair::Shortened][..]));
    assert_eq!(document.value["result"], line["result"]);
    let kept = document.value["text"].as_str().unwrap();
    assert!(
        kept.starts_with("begin") && kept.ends_with("end") && kept.len() < 2_000_000,
        "{} bytes",
        kept.len()
    );
    assert!(document.value.to_string().len() < 16 * 1024 * 1024);
    assert_eq!(in_pieces(&bytes, 1_000_003, Reader::long()), document);
}

#[test]
fn a_document_with_too_many_members_is_damaged() {
    let members: Vec<_> = (0..600_000).map(|n| format!("\"{n}\":1")).collect();
    let text = format!("{{{},\"status\":\"failed\"}}", members.join(","));
    let document = in_pieces(text.as_bytes(), 64 * 1024, Reader::long());
    assert_eq!(document.damage, Some(Damage::TooLarge));
}

#[test]
fn prefix_is_parsed_without_the_rest() {
    let text = r#"{"a":"\ud83d"} and more"#;
    let (document, length) = prefix(text);
    assert_eq!((&text[length..], document.damage), (" and more", None));
}

#[test]
fn a_source_beyond_the_limit_is_read_to_its_end() {
    let text = json!({"response": "x".repeat(3_000_000), "cwd": "/p"}).to_string();
    for limit in [1024, 10_000_000] {
        let document = read_from(&mut text.as_bytes(), limit).unwrap();
        assert_eq!((document.damage, &document.value["cwd"]), (None, &json!("/p")));
    }
}
