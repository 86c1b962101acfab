/** The API in words, made of its own description; nothing is asked of any other server. */

import { getDescription, rootAddress } from "./api.js";
import { byId, make } from "./dom.js";
import { fieldTable, inWords, referenced } from "./schema.js";
import { showTrouble, withKey } from "./trouble.js";

const JSON_TYPE = "application/json";

/** Return every operation as [method, path, what is said of it]. */
function operationsOf(description) {
  return Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => [method.toUpperCase(), path, operation]),
  );
}

function idOf(method, path) {
  return `${method}-${path}`.replaceAll(/[^A-Za-z0-9]+/g, "-").toLowerCase();
}

function operationSection([method, path, operation], schemas) {
  const id = idOf(method, path);
  const section = make("section", { "aria-labelledby": id });
  section.append(make("h2", { id }, make("code", {}, `${method} ${path}`)));
  section.append(make("p", {}, operation.description ?? operation.summary ?? ""));
  const body = operation.requestBody?.content[JSON_TYPE]?.schema;
  if (body) {
    section.append(make("h3", {}, "Request"), make("p", {}, "JSON: ", ...inWords(body)));
    const table = fieldTable(schemas[referenced(body)] ?? body, `Fields of ${method} ${path}`);
    if (table) section.append(table);
  }
  section.append(make("h3", {}, "Answers"), answerTable(operation, `${method} ${path}`));
  return section;
}

function answerTable(operation, name) {
  const rows = Object.entries(operation.responses).map(([status, answer]) => {
    const schema = answer.content?.[JSON_TYPE]?.schema;
    const words = schema && Object.keys(schema).length ? [", ", ...inWords(schema)] : [];
    return make("tr", {}, make("th", { scope: "row" }, status), make("td", {}, answer.description, ...words));
  });
  const head = make("tr", {}, make("th", { scope: "col" }, "status"), make("th", { scope: "col" }, "meaning"));
  const caption = make("caption", { class: "hidden" }, `Answers to ${name}`);
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

function schemaSection([name, schema]) {
  const id = `schema-${name}`;
  const section = make("section", { "aria-labelledby": id }, make("h2", { id }, name));
  if (schema.description) section.append(make("p", {}, schema.description));
  const table = fieldTable(schema, `Fields of ${name}`);
  if (table) section.append(table);
  return section;
}

function show(description) {
  const operations = operationsOf(description);
  const schemas = description.components?.schemas ?? {};
  byId("version").textContent = description.info.version;
  byId("contents").replaceChildren(
    ...operations.map(([method, path]) =>
      make("li", {}, make("a", { href: `#${idOf(method, path)}` }, make("code", {}, `${method} ${path}`))),
    ),
  );
  byId("operations").replaceChildren(...operations.map((one) => operationSection(one, schemas)));
  byId("schemas").replaceChildren(...Object.entries(schemas).map(schemaSection));
  // what was asked for was not there before
  if (location.hash) byId(location.hash.slice(1))?.scrollIntoView();
}

async function open() {
  byId("docs-trouble").replaceChildren();
  try {
    show(await withKey(getDescription));
  } catch (error) {
    showTrouble(byId("docs-trouble"), error, open);
  }
}

byId("base").textContent = rootAddress("v1");
open();
