// The drawing library, a megabyte: a file of its own, so that the controls are there before it is read.

export { default as embed } from "vega-embed";
export { expressionInterpreter } from "vega-interpreter";
