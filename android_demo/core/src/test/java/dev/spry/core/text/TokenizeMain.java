package dev.spry.core.text;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Cuts texts for a comparison with Python: the tokenizer.json is its argument, a line of standard input is [text, pair or
 * null, length], and a line of standard output the tokens.
 */
public final class TokenizeMain {
    private TokenizeMain() {}

    public static void main(String[] arguments) throws IOException, JSONException {
        Tokenizer tokenizer = Tokenizer.read(new File(arguments[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONArray given = new JSONArray(line);
            String pair = given.isNull(1) ? null : given.getString(1);
            Encoding found = tokenizer.encode(given.getString(0), pair, given.getInt(2));
            out.println(new JSONObject().put("ids", numbers(found.ids)).put("types", numbers(found.types))
                    .put("texts", numbers(found.texts)).put("starts", numbers(found.starts))
                    .put("ends", numbers(found.ends)));
        }
        out.flush();
    }

    private static JSONArray numbers(int[] values) {
        JSONArray result = new JSONArray();
        for (int value : values) {
            result.put(value);
        }
        return result;
    }
}
