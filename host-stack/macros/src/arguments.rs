//! What stands in the attribute's parentheses.

use syn::{
    Expr, ExprLit, Lit, LitStr, MetaNameValue, Token,
    parse::{Parse, ParseStream},
    parse_quote,
    punctuated::Punctuated,
    spanned::Spanned,
};

const NAMES: &str = "there are cards, hcas, model, platforms, seeds and exe";

/// The arguments, with their defaults.
pub struct Arguments {
    pub cards: Expr,
    pub hcas: Expr,
    pub model: LitStr,
    pub platforms: Vec<LitStr>,
    pub seeds: Expr,
    pub exe: Option<Expr>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self {
            cards: parse_quote!(1),
            hcas: parse_quote!(1),
            model: parse_quote!("A"),
            platforms: Vec::new(),
            seeds: parse_quote!(0..1),
            exe: None,
        };
        let pairs = Punctuated::<MetaNameValue, Token![,]>::parse_terminated(input)?;
        for MetaNameValue { path, value, .. } in pairs {
            let name = path
                .get_ident()
                .map(ToString::to_string)
                .unwrap_or_default();
            match name.as_str() {
                "cards" => arguments.cards = value,
                "hcas" => arguments.hcas = value,
                "model" => arguments.model = model(&value)?,
                "platforms" => arguments.platforms = platforms(&value)?,
                "seeds" => arguments.seeds = value,
                "exe" => arguments.exe = Some(value),
                _ => return Err(syn::Error::new(path.span(), NAMES)),
            }
        }
        Ok(arguments)
    }
}

fn model(value: &Expr) -> syn::Result<LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(letters),
            ..
        }) if !letters.value().is_empty() && letters.value().chars().all(|c| "AB".contains(c)) => {
            Ok(letters.clone())
        }
        _ => Err(syn::Error::new(
            value.span(),
            r#"models are written as "A" or "B", or as a letter for each HCA"#,
        )),
    }
}

fn platforms(value: &Expr) -> syn::Result<Vec<LitStr>> {
    let wrong = |at: &dyn Spanned| {
        let what = r#"platforms are written as ["kvm", "ptrace"], one of them or both"#;
        syn::Error::new(at.span(), what)
    };
    let Expr::Array(array) = value else {
        return Err(wrong(value));
    };
    let names = array.elems.iter().map(|element| match element {
        Expr::Lit(ExprLit {
            lit: Lit::Str(name),
            ..
        }) if ["kvm", "ptrace"].contains(&name.value().as_str()) => Ok(name.clone()),
        other => Err(wrong(other)),
    });
    names.collect()
}
