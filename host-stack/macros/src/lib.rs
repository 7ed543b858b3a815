//! `#[snaprig::test]`; see the crate `snaprig`, which re-exports and documents it.

mod arguments;

use proc_macro::TokenStream;
use quote::quote;
use syn::{FnArg, ItemFn, parse_macro_input, spanned::Spanned};

use self::arguments::Arguments;

/// See `snaprig::test`.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as Arguments);
    let function = parse_macro_input!(function as ItemFn);
    expand(&arguments, function)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

fn expand(arguments: &Arguments, mut function: ItemFn) -> syn::Result<proc_macro2::TokenStream> {
    let signature = &function.sig;
    if let Some(token) = signature.asyncness {
        let what = "a test of snaprig is not async: block on what you wait for";
        return Err(syn::Error::new(token.span(), what));
    }
    let types = signature
        .inputs
        .iter()
        .map(|input| match input {
            FnArg::Typed(input) => Ok(&*input.ty),
            FnArg::Receiver(own) => Err(syn::Error::new(own.span(), "a test has no self")),
        })
        .collect::<syn::Result<Vec<_>>>()?;
    let name = signature.ident.clone();
    let attributes = std::mem::take(&mut function.attrs);
    let visibility = &function.vis;
    let Arguments {
        cards,
        hcas,
        model,
        platforms,
        seeds,
        exe,
    } = arguments;
    let exe = match exe {
        Some(exe) => quote!(::core::option::Option::Some(::std::path::PathBuf::from(#exe))),
        None => quote!(::core::option::Option::None),
    };
    let (types, signature, block) = (&types, &function.sig, &function.block);
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attributes)*
        #visibility fn #name() {
            #signature #block
            let __snaprig_setup = ::snaprig::case::Setup {
                module: ::core::module_path!(),
                name: ::core::stringify!(#name),
                package: ::core::env!("CARGO_PKG_NAME"),
                file: ::core::file!(),
                is_integration_test: ::core::option_env!("CARGO_TARGET_TMPDIR").is_some(),
                cards: #cards,
                hcas: #hcas,
                model: #model,
                platforms: &[#(#platforms),*],
                seeds: #seeds,
                exe: #exe,
                needs_rig: false #(|| <#types as ::snaprig::case::FromCase>::NEEDS_RIG)*,
            };
            ::snaprig::case::run(&__snaprig_setup, |__snaprig_case| {
                ::snaprig::case::Verdict::into_result(#name(
                    #(<#types as ::snaprig::case::FromCase>::from_case(__snaprig_case)?),*
                ))
            });
        }
    })
}
