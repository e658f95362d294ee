//! W3C trace context: `00-<trace id>-<span id>-<flags>`.

use std::fmt;

/// A position in a trace: a new span there becomes a child of `span`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub sampled: bool,
}

impl Context {
    /// Parses a `traceparent`. Returns `None` for anything that the specification calls invalid;
    /// the longer form of a later version is accepted.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = parts.next().filter(|version| version.len() == 2 && *version != "ff")?;
        let (trace, span, flags) =
            (bytes::<16>(parts.next()?)?, bytes::<8>(parts.next()?)?, bytes::<1>(parts.next()?)?);
        bytes::<1>(version)?;
        let whole = version != "00" || parts.next().is_none();
        let real = trace != [0; 16] && span != [0; 8];
        (whole && real).then_some(Self { trace, span, sampled: flags[0] & 1 == 1 })
    }

    /// Returns the context of another span of the same trace.
    #[must_use]
    pub fn below(self, span: [u8; 8]) -> Self {
        Self { span, ..self }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), u8::from(self.sampled))
    }
}

/// Returns the vendors' part of a trace context, as `TRACESTATE` carries it. Returns `None` if any
/// member is malformed, or if it exceeds the length that everybody has to pass on (W3C trace
/// context, "tracestate").
pub fn trace_state(text: &str) -> Option<&str> {
    const LENGTH: usize = 512;
    const MEMBERS: usize = 32;
    let text = text.trim_matches([' ', '\t']);
    let members: Vec<&str> =
        text.split(',').map(|member| member.trim_matches([' ', '\t'])).collect();
    let is_member = |member: &str| {
        let Some((key, value)) = member.split_once('=') else { return member.is_empty() };
        let first = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let further = |c: u8| first(c) || b"_-*/@".contains(&c);
        let key_fits =
            key.len() <= 256 && key.bytes().next().is_some_and(first) && key.bytes().all(further);
        let of_value = |c: u8| (c == b' ' || c.is_ascii_graphic()) && c != b'=';
        key_fits && (1..=256).contains(&value.len()) && value.bytes().all(of_value)
    };
    let fits = text.len() <= LENGTH
        && members.len() <= MEMBERS
        && members.iter().all(|member| is_member(member));
    (fits && members.iter().any(|member| !member.is_empty())).then_some(text)
}

/// Encodes bytes as lower-case hexadecimal, as both W3C and OTLP's JSON require.
pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_context_round_trips_and_rejects_invalid_text() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::parse(text).expect("valid");
        assert_eq!((context.to_string().as_str(), context.sampled), (text, true));
        assert!(
            Context::parse(&format!("01{}-more", &text[2..])).is_some(),
            "a later version may say more"
        );
        for wrong in [
            "",
            "00",
            &format!("{text}-more"),
            &text.to_uppercase(),
            &text.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &text.replace("b7ad6b7169203331", &"0".repeat(16)),
            &format!("ff{}", &text[2..]),
            &text[..50],
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn trace_state_is_passed_on_completely_or_not() {
        let (long, many) = (format!("a={}", "x".repeat(257)), vec!["a=b"; 33].join(","));
        let total = format!("a={},b={},c=d", "x".repeat(255), "y".repeat(254));
        for (text, passed) in [
            ("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", true),
            ("fw529a3039@dt=FfAxNw ; x, ,0a=1", true),
            (&total[..512], true),
            ("", false),
            (" , ", false),
            ("a", false),
            ("A=b", false),
            ("=b", false),
            ("a=", false),
            ("a=b=c", false),
            ("a=b\n,c=d", false),
            ("a=\u{e4}", false),
            (&long, false),
            (&many, false),
            (&total, false),
        ] {
            assert_eq!(trace_state(text).is_some(), passed, "{text:?}");
        }
        assert_eq!(trace_state(" a=b\t"), Some("a=b"));
    }
}
