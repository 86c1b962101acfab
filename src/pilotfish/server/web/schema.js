/** JSON schemas in words, as far as the description of the API uses them. */

import { make } from "./dom.js";

const NAMES = { integer: "whole number", number: "number", string: "text", boolean: "true or false" };

/** Return the name of the schema that a reference leads to. */
export function referenced(schema) {
  return schema.$ref?.split("/").pop() ?? null;
}

/** Return nodes that say what a value may be. */
export function inWords(schema) {
  if (typeof schema !== "object" || schema === null) return ["anything"];
  const name = referenced(schema);
  if (name) return [make("a", { href: `#schema-${name}` }, name)];
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(", ")];
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return joined(choices.filter((one) => one.type !== "null"));
  if (schema.type === "array") return ["list of ", ...inWords(schema.items ?? null), ...bounds(schema)];
  if (schema.type === "object") return ["object", ...bounds(schema)];
  return [NAMES[schema.type] ?? schema.type ?? "anything", ...bounds(schema)];
}

function joined(schemas) {
  if (!schemas.length) return ["null"];
  return schemas.flatMap((schema, index) => (index ? [" or ", ...inWords(schema)] : inWords(schema)));
}

function bounds(schema) {
  const found = [];
  const add = (name, words) => {
    if (schema[name] !== undefined) found.push(`${words} ${schema[name]}`);
  };
  add("minimum", "from");
  add("exclusiveMinimum", "above");
  add("maximum", "to");
  add("exclusiveMaximum", "below");
  add("maxItems", "at most");
  add("maxProperties", "at most");
  return found.length ? [`, ${found.join(" ")}`] : [];
}

/** Return a table of an object's fields, or null where it has none. */
export function fieldTable(schema, caption) {
  const fields = Object.entries(schema.properties ?? {});
  if (!fields.length) return null;
  const required = schema.required ?? [];
  const rows = fields.map(([name, field]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("code", {}, name), required.includes(name) ? " (required)" : ""),
      make("td", {}, ...inWords(field), field.description ? `: ${field.description}` : ""),
    ),
  );
  const head = make("tr", {}, make("th", { scope: "col" }, "field"), make("th", { scope: "col" }, "value"));
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
}
