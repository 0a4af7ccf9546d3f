// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** A device asks to take part. */
public final class Enrolment {
    public String token;
    public String name;
    public String version = "";
    /** Ed25519, in base64url: what the device signs its requests with. Empty: it is given a secret to send. */
    public String publicKey = "";
    /** The key's signature over the token and itself (`edge_client.wire.proofs.enrolment_text`), in base64url. */
    public String proof = "";

    public Enrolment(String token, String name) {
        this.token = token;
        this.name = name;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("token", token)
                .put("name", name)
                .put("version", version)
                .put("public_key", publicKey)
                .put("proof", proof);
    }
}
