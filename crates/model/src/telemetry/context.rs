//! W3C trace context: `00-<trace id>-<span id>-<flags>`.

use std::fmt;

/// A place in a trace: a new span there is a child of `span`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub sampled: bool,
}

impl Context {
    /// None for anything the specification calls invalid; a later version's longer form is read.
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

    /// The same trace, below another span.
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

/// Lower case, as both W3C and OTLP's JSON want it.
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
    fn what_is_written_is_read_and_what_is_invalid_is_not() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::parse(text).expect("valid");
        assert_eq!((context.to_string().as_str(), context.sampled), (text, true));
        assert!(Context::parse(&format!("01{}-more", &text[2..])).is_some(), "a later version may say more");
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
}
