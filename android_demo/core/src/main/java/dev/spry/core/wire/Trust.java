package dev.spry.core.wire;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertPathValidatorException;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateFactory;
import java.security.cert.CertificateNotYetValidException;
import java.util.Date;

import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

import dev.spry.core.SpryException;

/** Who may vouch for a server. */
public final class Trust {
    private Trust() {
    }

    /** The authorities in a PEM file, in place of the system's. */
    public static SSLSocketFactory in(File ca) {
        try (InputStream file = new FileInputStream(ca)) {
            KeyStore known = KeyStore.getInstance(KeyStore.getDefaultType());
            known.load(null, null);
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                known.setCertificateEntry("ca-" + known.size(), one);
            }
            if (known.size() == 0) {
                throw new CertificateException("it holds none");
            }
            TrustManagerFactory managers =
                    TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            managers.init(known);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, managers.getTrustManagers(), null);
            return context.getSocketFactory();
        } catch (IOException | GeneralSecurityException error) {
            throw new SpryException(
                    ca + " cannot be read as certificates (" + error.getMessage() + "); give a PEM file");
        }
    }

    /** Why a server's certificate was not taken; null where that is not what went wrong. */
    static String problem(Throwable error) {
        String found = null;
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof CertificateExpiredException || cause instanceof CertificateNotYetValidException) {
                return "shows a certificate that is not valid on this device's date, " + new Date()
                        + "; set the device's clock, or tell the server's operator";
            }
            if (found == null
                    && (cause instanceof CertificateException || cause instanceof CertPathValidatorException)) {
                found = "shows a certificate that this device does not trust (" + cause.getMessage()
                        + "); install the authority that signed it on this device";
            }
        }
        return found;
    }
}
